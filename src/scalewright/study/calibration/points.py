"""The points of the calibrate study: micro benchmarks and short training runs, the most useful first.

Each is a kind of point with its options, as in a study file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from scalewright.study.expressions import Value
from scalewright.workload.model import from_shape
from scalewright.workload.run_options import DeviceKind

Options = dict[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroPoint:
    """One micro benchmark. It gets a share of the time, and keeps to it."""

    name: str
    kind: str
    num_ranks: int
    least_s: float
    """With less time its figures are worth nothing."""
    most_s: float
    """More time than this adds nothing."""
    options: Callable[[float], Options]
    """Options of the point for a budget in seconds."""
    is_needed: bool = False
    """Without it there is no calibration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A short training run. Its number of steps follows from the predicted time of one."""

    name: str
    kind: str
    num_ranks: int
    options: Callable[[int], Options]
    """Options of the point for a number of steps."""
    compile_s: float = 0.0
    """Time to compile, beside the start of a process, as measured on one H200."""
    fallback_step_s: float = 0.5
    """Assumed time of a step that cannot be predicted."""


CalibrationPoint = MicroPoint | TrainingRun

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
"""Shape and micro-batch (on GPUs also the compile mode and the time it takes): one is bound by its host, the others by
matrix products and by memory."""
GPU_VISION = (
    ("bf16", 256, "off", 8.0),
    ("bf16", 256, "graphs", 50.0),
    ("bf16", 96, "off", 8.0),
    ("fp32", 128, "off", 2.0),
)
"""Precision, batch, compile mode, and the time that compiling or the search for kernels takes."""
CPU_VISION_BATCH = 8


Calibrated = Literal["all", "language", "vision", "generation"]
"""What a calibration is for."""
OF_ALL = ("gemm", "memory", "dispatch", "collectives")
OF_WORKLOAD: dict[str, tuple[str, ...]] = {
    "language": ("attention", "language", "storage", "checkpoint"),
    "vision": ("convolution", "vision", "storage", "checkpoint"),
    "generation": ("decode",),
}
"""Kinds of points that each of them needs beside those of all."""
GPU_DECODE = (
    ("layers=24,hidden=2048,heads=16,vocab=50304,seq=4096", "bf16,fp8,fp32", 45.0, 240.0),
    ("layers=12,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=32000,seq=4096", "bf16", 25.0, 75.0),
)
CPU_DECODE = (
    ("layers=6,hidden=256,heads=4,vocab=2048,seq=512", "fp32", 3.0, 16.0),
    ("layers=2,hidden=512,heads=8,vocab=4096,seq=512", "fp32", 3.0, 16.0),
)
"""Models whose decode steps and prompts are measured, which differ in layers and in the bytes of one; precisions of
weights; and the time for them. On a GPU most of it compiles and times kernels, once for each batch and precision."""


def points(device: DeviceKind, *, num_ranks: int, scratch: str, workload: Calibrated = "all") -> list[CalibrationPoint]:
    """Everything worth measuring, the most useful first; several ranks only where they influence each other."""
    of_device = _cpu_points(num_ranks) if device == "cpu" else _gpu_points(num_ranks)
    every = [*of_device, _storage(scratch), _checkpoint(device, scratch)]
    return [point for point in every if workload == "all" or point.kind in (*OF_ALL, *OF_WORKLOAD[workload])]


def _gpu_points(num_ranks: int) -> list[CalibrationPoint]:
    precisions = ("bf16", "fp32", "tf32", "fp16", "fp8")
    language = [_language("cuda", *row) for row in GPU_LANGUAGE]
    vision = [_vision("cuda", *row) for row in GPU_VISION]
    return [
        _gemm("cuda", 1, precisions, (), least_s=12.0, most_s=60.0, is_needed=True),
        _memory("cuda", 1, (2**26, 2**28, 2**30), least_s=2.0, most_s=20.0, is_needed=True),
        _dispatch("cuda", 1, compiles=True, least_s=3.0, most_s=10.0),
        _attention("cuda", 1, ("bf16", "tf32"), 16, GPU_ATTENTION, least_s=8.0, most_s=40.0),
        *([_collectives("cuda", num_ranks)] if num_ranks > 1 else []),
        language[0], language[1], language[2], *(_decode("cuda", *row) for row in GPU_DECODE), _convolution(),
        vision[0], *vision[1:], *language[3:],
    ]  # fmt: skip


def _cpu_points(num_ranks: int) -> list[CalibrationPoint]:
    together: list[CalibrationPoint] = []
    if num_ranks > 1:
        together = [
            _gemm("cpu", num_ranks, ("fp32",), CPU_PRODUCTS, least_s=2.0, most_s=20.0),
            _collectives("cpu", num_ranks),
            _memory("cpu", num_ranks, (2**20, 2**26), least_s=1.0, most_s=10.0),
        ]
    alone = [_language("cpu", shape, batch, "off", 0.0) for shape, batch in CPU_LANGUAGE]
    many = [_language("cpu", shape, batch, "off", 0.0, num_ranks=num_ranks) for shape, batch in CPU_LANGUAGE]
    later = [run for pair in zip(alone[2:], many[2:], strict=True) for run in pair[: min(num_ranks, 2)]]
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
        *(_decode("cpu", *row) for row in CPU_DECODE),
        *(_decode("cpu", *row, num_ranks=num_ranks) for row in CPU_DECODE if num_ranks > 1),
        *later,
        _vision("cpu", "fp32", CPU_VISION_BATCH, "off", 0.0),
    ]


def _name(kind: str, num_ranks: int) -> str:
    return kind if num_ranks == 1 else f"{kind}-{num_ranks}"


def _seconds(budget_s: float) -> str:
    return f"{budget_s!r} s"


def _sizes(numbers: Iterable[int]) -> str:
    return ",".join(f"{number} B" for number in numbers)


def _triples(rows: Iterable[tuple[int, int, int]]) -> str:
    return ";".join(f"{a},{b},{c}" for a, b, c in rows)


def _gemm(
    device: DeviceKind, num_ranks: int, precisions: tuple[str, ...], shapes: tuple[tuple[int, int, int], ...], *,
    least_s: float, most_s: float, is_needed: bool = False,
) -> MicroPoint:  # fmt: skip
    def options(budget_s: float) -> Options:
        finds_best = device == "cuda" or budget_s >= 2.0 * least_s
        given: Options = {"shapes": _triples(shapes)} if shapes else {}
        return given | {
            "precision": ",".join(precisions), "best": finds_best, "skip_missing": True, "ranks": num_ranks,
            "device": device, "budget": _seconds(budget_s),
        }  # fmt: skip

    return MicroPoint(name=_name("gemm", num_ranks), kind="gemm", num_ranks=num_ranks, least_s=least_s, most_s=most_s,
                      options=options, is_needed=is_needed)  # fmt: skip


def _memory(
    device: DeviceKind, num_ranks: int, sizes: tuple[int, ...], *, least_s: float, most_s: float,
    is_needed: bool = False,
) -> MicroPoint:  # fmt: skip
    def options(budget_s: float) -> Options:
        return {"sizes": _sizes(sizes), "ranks": num_ranks, "device": device, "budget": _seconds(budget_s)}

    return MicroPoint(name=_name("memory", num_ranks), kind="memory", num_ranks=num_ranks, least_s=least_s,
                      most_s=most_s, options=options, is_needed=is_needed)  # fmt: skip


def _dispatch(device: DeviceKind, num_ranks: int, *, compiles: bool, least_s: float, most_s: float) -> MicroPoint:
    def options(budget_s: float) -> Options:
        return {"compile": compiles, "compile_in_budget": False, "device": device, "budget": _seconds(budget_s)}

    return MicroPoint(
        name="dispatch", kind="dispatch", num_ranks=num_ranks, least_s=least_s, most_s=most_s, options=options
    )


def _attention(
    device: DeviceKind, num_ranks: int, precisions: tuple[str, ...], heads: int,
    cases: tuple[tuple[int, int, int], ...], *, least_s: float, most_s: float,
) -> MicroPoint:  # fmt: skip
    def options(budget_s: float) -> Options:
        return {
            "precision": ",".join(precisions), "heads": heads, "cases": _triples(cases), "device": device,
            "budget": _seconds(budget_s),
        }  # fmt: skip

    return MicroPoint(
        name="attention", kind="attention", num_ranks=num_ranks, least_s=least_s, most_s=most_s, options=options
    )


def _decode(
    device: DeviceKind, shape: str, precision: str, least_s: float, most_s: float, *, num_ranks: int = 1
) -> MicroPoint:
    """Steps of our engine over batch and context, and prompts; of several ranks each has a copy of the model."""
    sizes = from_shape(shape).transformer

    def options(budget_s: float) -> Options:
        return {
            "model": shape, "precision": precision, "ranks": num_ranks, "device": device, "budget": _seconds(budget_s),
        }  # fmt: skip

    return MicroPoint(name=_name(f"decode-{sizes.layers}x{sizes.hidden}", num_ranks), kind="decode",
                      num_ranks=num_ranks, least_s=least_s, most_s=most_s, options=options)  # fmt: skip


def _convolution() -> MicroPoint:
    """Every convolution of ResNet-50 with its norm, those of ResNet-18 among them, and the stem as it is folded."""

    def options(budget_s: float) -> Options:
        return {
            "precision": "bf16,fp32,tf32,fp16", "batch": 128, "folded_stem": True, "skip_missing": True,
            "device": "cuda", "budget": _seconds(budget_s),
        }  # fmt: skip

    return MicroPoint(name="convolution", kind="convolution", num_ranks=1, least_s=45.0, most_s=90.0, options=options)


def _collectives(device: DeviceKind, num_ranks: int) -> MicroPoint:
    def options(budget_s: float) -> Options:
        return {
            "ops": "all-reduce,all-gather,reduce-scatter", "min_bytes": "16 KiB", "max_bytes": "64 MiB", "factor": 4.0,
            "ranks": num_ranks, "device": device, "budget": _seconds(budget_s),
        }  # fmt: skip

    return MicroPoint(name=_name("collectives", num_ranks), kind="collectives", num_ranks=num_ranks, least_s=3.0,
                      most_s=40.0, options=options)  # fmt: skip


def _storage(scratch: str) -> MicroPoint:
    def options(budget_s: float) -> Options:
        return {
            "path": scratch, "formats": "files,shards", "size": "64 MiB", "workers": "1", "files": 200,
            "budget": _seconds(budget_s),
        }  # fmt: skip

    return MicroPoint(name="storage", kind="storage", num_ranks=1, least_s=4.0, most_s=20.0, options=options)


def _checkpoint(device: DeviceKind, scratch: str) -> MicroPoint:
    def options(budget_s: float) -> Options:
        return {"path": scratch, "sizes": "256 MiB", "device": device, "budget": _seconds(budget_s)}

    return MicroPoint(name="checkpoint", kind="checkpoint", num_ranks=1, least_s=5.0, most_s=20.0, options=options)


def _language(
    device: DeviceKind, shape: str, batch: int, compiled: str, compile_s: float, *, num_ranks: int = 1
) -> TrainingRun:  # fmt: skip
    def options(num_steps: int) -> Options:
        return {
            "model": shape, "layout": f"dp={num_ranks},mbs={batch},gbs={batch * num_ranks}",
            "precision": "bf16" if device == "cuda" else "fp32", "steps": num_steps, "compile": compiled,
            "device": device, "profile_steps": 0, "keep": 1,
        }  # fmt: skip

    sizes = from_shape(shape).transformer
    mode = "eager" if compiled == "off" else compiled
    name = f"language-{sizes.layers}x{sizes.hidden}-s{sizes.seq}-b{batch}-{mode}"
    return TrainingRun(name=_name(name, num_ranks), kind="language", num_ranks=num_ranks, options=options,
                       compile_s=compile_s)  # fmt: skip


def _vision(device: DeviceKind, precision: str, batch: int, compiled: str, compile_s: float) -> TrainingRun:
    """ResNet-50 on synthetic images: of full size on a GPU, small ones on a CPU."""

    def options(num_steps: int) -> Options:
        return {
            "model": "resnet-50", "image_size": 224 if device == "cuda" else 64, "ranks": 1, "batch": batch,
            "steps": num_steps, "precision": precision, "compile": compiled, "validates": False, "device": device,
            "profile_steps": 0,
        }  # fmt: skip

    mode = "eager" if compiled == "off" else compiled
    return TrainingRun(name=f"vision-b{batch}-{precision}-{mode}", kind="vision", num_ranks=1, options=options,
                       compile_s=compile_s)  # fmt: skip
