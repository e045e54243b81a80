"""Measure the memory of training steps on one GPU in all three kinds: allocated, reserved, and what nvidia-smi shows.

    python benchmarks/gpu_memory.py OUT.jsonl [--only plain-resnet,trainer-language] [--within SECONDS]

Each group runs in a process of its own, so that a figure holds no leftovers of another. The plain groups need torch
alone; the groups named trainer-* run scalewright's own trainers and are passed over without pydantic or PYTHONPATH=src.
A row has the peaks of the first step, in which the convolution library searches for kernels and compilers work, and the
peaks of later steps. Rows are printed as JSON lines and stored. On an H200 all groups together take about six minutes.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

STEPS = 3
LARGE = "layers=24,hidden=2048,heads=16,vocab=50304,seq=2048"
Step = Callable[[], None]


def shown_bytes() -> int | None:
    """What nvidia-smi shows as used on the first GPU; None without it."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return int(answer.stdout.strip()) * 2**20


def figures() -> dict[str, int | None]:
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "taken_bytes": total - free,
        "shown_bytes": shown_bytes(),
    }


def measured(name: str, step: Step, **facts: Any) -> dict[str, Any]:
    """Peaks of the first step and of later ones. `empty_cache` between them drops what only the first one needed."""
    started_s = time.perf_counter()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    first = figures()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return {
        "name": name, **facts, **figures(), "first_step": first, "held_bytes": torch.cuda.memory_allocated(),
        "seconds": time.perf_counter() - started_s, "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
        "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
    }  # fmt: skip


def context() -> Iterator[dict[str, Any]]:
    """The bare context, then with the libraries of products and convolutions loaded."""
    torch.zeros(1, device="cuda")
    yield {"name": "context", **figures()}
    x, weight = torch.randn(256, 256, device="cuda"), torch.randn(64, 3, 3, 3, device="cuda")
    (x @ x).sum().item()
    yield {"name": "context-cublas", **figures()}
    nn.functional.conv2d(torch.randn(1, 3, 32, 32, device="cuda"), weight).sum().item()
    yield {"name": "context-cudnn", **figures()}


def language_step(model: nn.Module, optimizer: Any, tokens: torch.Tensor, num_micro: int) -> None:
    for _ in range(num_micro):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(tokens[:, :-1], tokens[:, 1:].contiguous())
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def image_step(model: nn.Module, optimizer: Any, images: torch.Tensor, labels: torch.Tensor, amp: bool) -> None:
    with torch.autocast("cuda", torch.bfloat16, enabled=amp):
        loss = nn.functional.cross_entropy(model(images).float(), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def trainer_step(step: Callable[..., Any], source: Any, names: tuple[str, str]) -> None:
    batch = source.next()
    step(*(getattr(batch, name) for name in names))


def plain_language() -> Iterator[dict[str, Any]]:
    """The model of gpu_steps.py: bf16 autocast over fp32 weights, fused AdamW; with and without accumulation."""
    from gpu_steps import SHAPES, Model  # type: ignore[import-not-found]

    layers, hidden, heads, kv_heads, ffn, vocab, seq, micro_batch, gated, _ = SHAPES[2]
    for num_micro in (1, 4):
        model = Model((layers, hidden, heads, kv_heads, ffn, vocab, seq), gated=gated, recompute=False).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        tokens = torch.randint(vocab, (micro_batch, seq + 1), device="cuda")
        step = functools.partial(language_step, model, optimizer, tokens, num_micro)
        num_params = sum(p.numel() for p in model.parameters())
        yield measured(f"plain-language-{num_micro}", step, num_micro_batches=num_micro, num_params=num_params)
        del model, optimizer, step
        _clear()


def plain_resnet() -> Iterator[dict[str, Any]]:
    """ResNet-50 as vision_memory.py builds it, in plain PyTorch."""
    from vision_memory import resnet  # type: ignore[import-not-found]

    torch.backends.cudnn.allow_tf32 = False
    for name, batch, last, amp, search in (
        ("fp32-last", 256, True, False, False),
        ("fp32-first", 256, False, False, False),
        ("fp32-last-search", 256, True, False, True),
        ("amp-last", 256, True, True, False),
        ("amp-last-search", 256, True, True, True),
    ):
        torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = search, 4
        layout = torch.channels_last if last else torch.contiguous_format
        model = resnet("resnet-50").cuda().to(memory_format=layout)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        images = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=layout)
        labels = torch.zeros(batch, dtype=torch.long, device="cuda")

        step = functools.partial(image_step, model, optimizer, images, labels, amp)
        yield measured(f"plain-resnet-{name}", step, batch=batch, channels_last=last, autocast=amp, search=search)
        del model, optimizer, images, step
        _clear()


def resnet_sizes() -> Iterator[dict[str, Any]]:
    """ResNets of several sizes and batches with cuDNN's search, whose workspaces only the first step holds."""
    from vision_memory import resnet  # type: ignore[import-not-found]

    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = False, True
    batches = [("resnet-50", 128), ("resnet-50", 256), ("resnet-50", 512), ("resnet-50", 1024), ("resnet-18", 512)]
    for precision, num_candidates in (("fp32", 4), ("bf16", 10)):
        torch.backends.cudnn.benchmark_limit = num_candidates
        for name, batch in batches:
            model = resnet(name).cuda().to(memory_format=torch.channels_last)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            images = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
            labels = torch.zeros(batch, dtype=torch.long, device="cuda")
            step = functools.partial(image_step, model, optimizer, images, labels, precision == "bf16")
            yield measured(
                f"{name}-{precision}-{batch}", step, model=name, batch=batch, precision=precision, channels_last=True,
                num_candidates=num_candidates,
            )  # fmt: skip
            del model, optimizer, images, step
            _clear()


def trainer_language() -> Iterator[dict[str, Any]]:
    """scalewright's own language trainer, with and without gradient accumulation."""
    from scalewright.run.device import allow_attention, choose_device, join_group
    from scalewright.run.language.session import open_language_session
    from scalewright.run.world import World
    from scalewright.workload.language_run import resolve
    from scalewright.workload.layout import parse_layout
    from scalewright.workload.model import from_shape

    world = World.from_environment({})
    device = choose_device("cuda", world)
    join_group(world, device)
    for layout, mode in (("mbs=8,gbs=8", "off"), ("mbs=8,gbs=32", "off"), ("mbs=8,gbs=8", "graphs"),
                         ("mbs=8,gbs=32", "graphs")):  # fmt: skip
        torch._dynamo.reset()
        run = resolve(from_shape(LARGE), parse_layout(layout), precision="bf16", device="cuda", steps=20, compile=mode)
        allow_attention(run.attention, device)
        session = open_language_session(run, device)
        loader = session.loader()

        step = functools.partial(trainer_step, session.step, loader, ("tokens_BL", "targets_BL"))
        yield measured(f"trainer-language-{mode}-{layout}", step, shape=LARGE, layout=layout, compile=mode)
        loader.close()
        del session, loader, step
        _clear()


def trainer_vision() -> Iterator[dict[str, Any]]:
    """scalewright's own vision trainer: ResNet-50 in fp32 and under autocast, eager and as a graph."""
    from h200_vision import Variant, vision_run  # type: ignore[import-not-found]

    from scalewright.run.device import choose_device, join_group
    from scalewright.run.vision.loader import SyntheticBatches
    from scalewright.run.vision.session import open_vision_session
    from scalewright.run.world import World

    world = World.from_environment({})
    device = choose_device("cuda", world)
    join_group(world, device)
    for variant in (
        Variant("fp32", 512, True), Variant("fp32", 512, False), Variant("bf16", 512, True),
        Variant("bf16", 512, True, "graphs"), Variant("fp32", 512, True, "graphs"),
    ):  # fmt: skip
        torch._dynamo.reset()
        run = vision_run(variant)
        session = open_vision_session(run, device)
        batches = SyntheticBatches(run, device, rank=0, first_step=0)

        step = functools.partial(trainer_step, session.step, batches, ("images_BHWC", "labels_B"))
        place = "last" if variant.channels_last else "first"
        yield measured(
            f"trainer-vision-{variant.precision}-{place}-{variant.compile}", step, batch=variant.batch,
            precision=variant.precision, channels_last=variant.channels_last, compile=variant.compile,
        )  # fmt: skip
        del session, batches, step
        _clear()


def _clear() -> None:
    gc.collect()
    torch.cuda.empty_cache()


GROUPS: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "context": context,
    "trainer-language": trainer_language,
    "plain-language": plain_language,
    "plain-resnet": plain_resnet,
    "resnet-sizes": resnet_sizes,
    "trainer-vision": trainer_vision,
}


def run_group(name: str) -> None:
    """Print the rows of one group; a group whose imports are missing says so."""
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        for row in GROUPS[name]():
            print(json.dumps({"group": name, **row}), flush=True)
    except ImportError as error:
        print(json.dumps({"group": name, "skipped": str(error)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure allocated, reserved and shown memory of training steps.")
    parser.add_argument("out", type=Path, nargs="?", help="file for the rows, as JSON lines")
    parser.add_argument("--only", default=",".join(GROUPS), help="groups, separated by commas")
    parser.add_argument("--within", type=float, default=230.0, help="seconds after which nothing more is started")
    parser.add_argument("--group", choices=GROUPS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.group:
        run_group(args.group)
        return
    deadline_s, rows = time.monotonic() + args.within, []
    for name in args.only.split(","):
        left_s = deadline_s - time.monotonic()
        if left_s < 10.0:
            rows.append(json.dumps({"group": name, "skipped": "no time left"}))
            continue
        command = [sys.executable, __file__, "--group", name]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=left_s, check=False)
            lines = done.stdout.splitlines()
        except subprocess.TimeoutExpired as late:
            printed = late.stdout or b""
            lines = (printed.decode() if isinstance(printed, bytes) else printed).splitlines()
            lines.append(json.dumps({"group": name, "skipped": "the rest took too long"}))
        rows += [line for line in lines if line.startswith("{")]
        print("\n".join(lines), flush=True)
        if args.out:
            args.out.write_text("".join(row + "\n" for row in rows))


if __name__ == "__main__":
    main()
