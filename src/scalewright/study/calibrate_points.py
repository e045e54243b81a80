"""The points of the calibrate study: micro benchmarks and short real steps, in the order of what they are worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scalewright import units
from scalewright.catalog.library import open_catalog
from scalewright.costs.measured_convolutions import folded_stem
from scalewright.workload import language_run
from scalewright.workload.collectives_run import CollectivesRun
from scalewright.workload.convolution_run import ConvolutionCase, ConvolutionRun, cases_of
from scalewright.workload.convolutions import resnet_convs
from scalewright.workload.language_run import DeviceKind
from scalewright.workload.layout import Layout
from scalewright.workload.micro_run import AttentionCase, AttentionRun, DispatchRun, GemmRun, MemoryRun
from scalewright.workload.model import from_shape
from scalewright.workload.products import Product
from scalewright.workload.storage_run import CheckpointRun, StorageRun
from scalewright.workload.vision_run import VisionRun

SHORTEST_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Micro:
    """One micro benchmark. It is given a share of the time, and keeps to it."""

    name: str
    kind: str
    num_ranks: int
    least_s: float
    """Below it, its figures are worth nothing."""
    most_s: float
    """More time than this tells nothing new."""
    config: Callable[[float], dict[str, Any]]
    """The configuration's document for a budget in seconds."""
    is_needed: bool = False
    """Without it there is no calibration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRun:
    """A short real run. Its length follows from what a step is predicted to take."""

    name: str
    kind: str
    num_ranks: int
    config: Callable[[int], dict[str, Any]]
    """The configuration's document for a number of steps."""
    compile_s: float = 0.0
    """What compiling takes beside the start of a process, as seen on one H200."""
    fallback_step_s: float = 0.5
    """Taken where a step cannot be predicted."""


Point = Micro | RealRun

CPU_PRODUCTS = (
    (64, 64, 64), (128, 128, 128), (256, 256, 256), (512, 128, 128), (512, 512, 512), (1024, 768, 256),
    (1024, 256, 1024), (256, 1024, 1024), (512, 4096, 512), (1024, 1024, 1024),
)  # fmt: skip
GPU_ATTENTION = ((16, 512, 64), (8, 1024, 128), (8, 1024, 64), (4, 2048, 128), (4, 2048, 64), (1, 8192, 128))
CPU_ATTENTION = ((8, 64, 32), (4, 128, 64), (4, 256, 64), (2, 512, 64))
"""Batch, length and head size."""
GPU_LANGUAGE = (
    ("layers=12,hidden=512,heads=8,vocab=8192,seq=256", 1, "off", 10.0),
    ("layers=8,hidden=2048,heads=16,vocab=50304,seq=2048", 4, "off", 12.0),
    ("layers=8,hidden=2048,heads=16,vocab=50304,seq=2048", 4, "graphs", 18.0),
    ("layers=16,hidden=1024,heads=16,vocab=50304,seq=1024", 8, "off", 12.0),
    ("layers=16,hidden=1024,heads=16,vocab=50304,seq=1024", 4, "graphs", 18.0),
    ("layers=6,hidden=3072,heads=24,vocab=32000,seq=1024", 8, "graphs", 18.0),
)
CPU_LANGUAGE = (
    ("layers=4,hidden=256,heads=4,vocab=4096,seq=128", 4),
    ("layers=6,hidden=64,heads=2,vocab=512,seq=64", 2),
    ("layers=2,hidden=512,heads=8,vocab=8192,seq=256", 2),
    ("layers=8,hidden=128,heads=4,vocab=512,seq=64", 2),
    ("layers=3,hidden=384,heads=6,vocab=2048,seq=256", 4),
)
"""Shape and micro-batch (and how it is compiled, with what that takes): one bound by its host, the others by products
and by memory."""
GPU_VISION = (
    ("bf16", 256, "off", 8.0),
    ("bf16", 256, "graphs", 50.0),
    ("bf16", 96, "off", 8.0),
    ("fp32", 128, "off", 2.0),
)
"""Precision, batch, and how it is compiled, with what that or the search for kernels takes."""
CPU_VISION_BATCH = 8


def points(device: DeviceKind, *, num_ranks: int, scratch: str) -> list[Point]:
    """Everything that is worth measuring, the most telling first; ranks beyond one where they meet."""
    found = _cpu_points(num_ranks) if device == "cpu" else _gpu_points(num_ranks)
    return [*found, _storage(scratch), _checkpoint(device, scratch)]


def _gpu_points(num_ranks: int) -> list[Point]:
    precisions = ("bf16", "fp32", "tf32", "fp16", "fp8")
    language = [_language("cuda", *row) for row in GPU_LANGUAGE]
    vision = [_vision("cuda", *row) for row in GPU_VISION]
    return [
        _gemm("cuda", 1, precisions, (), least_s=12.0, most_s=60.0, is_needed=True),
        _memory("cuda", 1, (2**26, 2**28, 2**30), least_s=2.0, most_s=20.0, is_needed=True),
        _dispatch("cuda", 1, compiles=True, least_s=3.0, most_s=10.0),
        _attention("cuda", 1, ("bf16", "tf32"), 16, GPU_ATTENTION, least_s=8.0, most_s=40.0),
        *([_collectives("cuda", num_ranks)] if num_ranks > 1 else []),
        language[0], language[1], language[2], _convolution(), vision[0], *vision[1:], *language[3:],
    ]  # fmt: skip


def _cpu_points(num_ranks: int) -> list[Point]:
    together: list[Point] = []
    if num_ranks > 1:
        together = [
            _gemm("cpu", num_ranks, ("fp32",), CPU_PRODUCTS, least_s=2.0, most_s=20.0),
            _collectives("cpu", num_ranks),
            _memory("cpu", num_ranks, (2**20, 2**26), least_s=1.0, most_s=10.0),
        ]
    alone = [_language("cpu", shape, batch, "off", 0.0) for shape, batch in CPU_LANGUAGE]
    many = [_language("cpu", shape, batch, "off", 0.0, num_ranks=num_ranks) for shape, batch in CPU_LANGUAGE]
    rest = [step for pair in zip(alone[2:], many[2:], strict=True) for step in pair[: min(num_ranks, 2)]]
    return [
        _gemm("cpu", 1, ("fp32",), CPU_PRODUCTS, least_s=2.0, most_s=20.0, is_needed=True),
        _memory("cpu", 1, (2**20, 2**26), least_s=1.0, most_s=10.0, is_needed=True),
        _dispatch("cpu", 1, compiles=False, least_s=1.0, most_s=5.0),
        alone[0],
        *together[:2],
        *(many[:1] if num_ranks > 1 else []),
        alone[1],
        *together[2:],
        *(many[1:2] if num_ranks > 1 else []),
        _attention("cpu", 1, ("fp32",), 8, CPU_ATTENTION, least_s=2.0, most_s=10.0),
        *rest,
        _vision("cpu", "fp32", CPU_VISION_BATCH, "off", 0.0),
    ]


def _named(kind: str, num_ranks: int) -> str:
    return kind if num_ranks == 1 else f"{kind}-{num_ranks}"


def _gemm(
    device: DeviceKind, num_ranks: int, precisions: tuple[Any, ...], shapes: tuple[tuple[int, int, int], ...], *,
    least_s: float, most_s: float, is_needed: bool = False,
) -> Micro:  # fmt: skip
    products = tuple(Product(m=m, n=n, k=k) for m, n, k in shapes)

    def config(budget_s: float) -> dict[str, Any]:
        finds = device == "cuda" or budget_s >= 2.0 * least_s
        run = GemmRun(precisions=precisions, products=products, finds_best=finds, skips_missing=True, device=device,
                      budget_s=budget_s)  # fmt: skip
        return run.document()

    return Micro(name=_named("gemm", num_ranks), kind="gemm", num_ranks=num_ranks, least_s=least_s, most_s=most_s,
                 config=config, is_needed=is_needed)  # fmt: skip


def _memory(
    device: DeviceKind, num_ranks: int, sizes: tuple[int, ...], *, least_s: float, most_s: float,
    is_needed: bool = False,
) -> Micro:  # fmt: skip
    def config(budget_s: float) -> dict[str, Any]:
        return MemoryRun(sizes_bytes=sizes, device=device, budget_s=budget_s).document()

    return Micro(name=_named("memory", num_ranks), kind="memory", num_ranks=num_ranks, least_s=least_s, most_s=most_s,
                 config=config, is_needed=is_needed)  # fmt: skip


def _dispatch(device: DeviceKind, num_ranks: int, *, compiles: bool, least_s: float, most_s: float) -> Micro:
    def config(budget_s: float) -> dict[str, Any]:
        return DispatchRun(compiles=compiles, device=device, budget_s=budget_s).document()

    return Micro(name="dispatch", kind="dispatch", num_ranks=num_ranks, least_s=least_s, most_s=most_s, config=config)


def _attention(
    device: DeviceKind, num_ranks: int, precisions: tuple[Any, ...], heads: int,
    cases: tuple[tuple[int, int, int], ...], *, least_s: float, most_s: float,
) -> Micro:  # fmt: skip
    calls = tuple(AttentionCase(batch=b, heads=heads, kv_heads=heads, seq=s, head_dim=d) for b, s, d in cases)

    def config(budget_s: float) -> dict[str, Any]:
        return AttentionRun(precisions=precisions, cases=calls, device=device, budget_s=budget_s).document()

    return Micro(name="attention", kind="attention", num_ranks=num_ranks, least_s=least_s, most_s=most_s, config=config)


def _convolution() -> Micro:
    """Every convolution of ResNet-50 with its norm, those of ResNet-18 among them, and the stem as it is folded."""

    def config(budget_s: float) -> dict[str, Any]:
        shape = open_catalog().model("resnet-50").conv
        assert shape is not None
        stem = folded_stem(next(iter(resnet_convs(shape))))
        folded = ConvolutionCase(
            channels_in=stem.channels_in, channels_out=stem.channels_out, kernel=stem.kernel, in_size=stem.in_size,
            out_size=stem.out_size, has_input_gradient=False,
        )  # fmt: skip
        run = ConvolutionRun(precisions=("bf16", "fp32", "tf32", "fp16"), layouts=("last",), batch=128,
                             cases=(*cases_of(shape), folded), skips_missing=True, device="cuda",
                             budget_s=budget_s)  # fmt: skip
        return run.document()

    return Micro(name="convolution", kind="convolution", num_ranks=1, least_s=45.0, most_s=90.0, config=config)


def _collectives(device: DeviceKind, num_ranks: int) -> Micro:
    def config(budget_s: float) -> dict[str, Any]:
        run = CollectivesRun(
            ops=("all-reduce", "all-gather", "reduce-scatter"), min_bytes=16 * units.KIB, max_bytes=64 * units.MIB,
            factor=4.0,
            budget_s=budget_s, device=device,
        )  # fmt: skip
        return run.document()

    return Micro(name=_named("collectives", num_ranks), kind="collectives", num_ranks=num_ranks, least_s=3.0,
                 most_s=40.0, config=config)  # fmt: skip


def _storage(scratch: str) -> Micro:
    def config(budget_s: float) -> dict[str, Any]:
        run = StorageRun(path=scratch, formats=("files", "shards"), size_bytes=2**26, num_metadata_files=200,
                         budget_s=budget_s)  # fmt: skip
        return run.document()

    return Micro(name="storage", kind="storage", num_ranks=1, least_s=4.0, most_s=20.0, config=config)


def _checkpoint(device: DeviceKind, scratch: str) -> Micro:
    def config(budget_s: float) -> dict[str, Any]:
        return CheckpointRun(path=scratch, sizes_bytes=(2**28,), device=device, budget_s=budget_s).document()

    return Micro(name="checkpoint", kind="checkpoint", num_ranks=1, least_s=5.0, most_s=20.0, config=config)


def _language(
    device: DeviceKind, shape: str, batch: int, compiled: str, compile_s: float, *, num_ranks: int = 1
) -> RealRun:  # fmt: skip
    spec = from_shape(shape)
    layout = Layout(dp=num_ranks, mbs=batch, gbs=batch * num_ranks)

    def config(num_steps: int) -> dict[str, Any]:
        run = language_run.resolve(
            spec, layout, precision="bf16" if device == "cuda" else "fp32", steps=num_steps, compile=compiled,
            device=device, profile_steps=0, checkpoint_keep=1,
        )  # fmt: skip
        return run.document()

    sizes = spec.transformer
    way = "eager" if compiled == "off" else compiled
    name = f"language-{sizes.layers}x{sizes.hidden}-s{sizes.seq}-b{batch}-{way}"
    return RealRun(name=_named(name, num_ranks), kind="language", num_ranks=num_ranks, config=config,
                   compile_s=compile_s)  # fmt: skip


def _vision(device: DeviceKind, precision: Any, batch: int, compiled: Any, compile_s: float) -> RealRun:
    """ResNet-50 on synthetic images: whole ones on a GPU, small ones on a CPU; laid out as `bench vision` would."""

    def config(num_steps: int) -> dict[str, Any]:
        run = VisionRun(
            model_id="resnet-50", blocks=(3, 4, 6, 3), width=64, num_classes=1000,
            image_size=224 if device == "cuda" else 64, num_ranks=1, batch=batch, epochs=1, steps_per_epoch=num_steps,
            precision=precision, compile=compiled, validates=False, device=device, profile_steps=0, num_workers=0,
        )  # fmt: skip
        return run.document()

    way = "eager" if compiled == "off" else compiled
    return RealRun(name=f"vision-b{batch}-{precision}-{way}", kind="vision", num_ranks=1, config=config,
                   compile_s=compile_s)  # fmt: skip
