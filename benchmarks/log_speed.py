"""Speed of the log readers on one core, one JSON line for each kind of log.

    python benchmarks/log_speed.py [--mb 64]

Logs are made of lines in the forms that programs print, with numbers that change from line to line: a log of one
dialect each, and a mixed one as a job's log is, where most lines are warnings and NCCL's, and bars are redrawn. The
first line is a plain sum: it says how fast the core is, and whether something else uses it.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from scalewright import units
from scalewright.observe.readers.reading import read_evidence

Draw = Callable[[int, random.Random], str]


def minute(step: int) -> str:
    return f"{step // 60 % 60:02d}:{step % 60:02d}"


def megatron(step: int, draw: random.Random) -> str:
    return (
        f" [2026-01-02 03:{minute(step)}.123456] iteration {step:8d}/{10**7:8d} | consumed samples: {256 * step:12d} "
        f"| elapsed time per iteration (ms): {draw.uniform(900, 1100):.1f} | throughput per GPU "
        f"(TFLOP/s/GPU): {draw.uniform(390, 410):.1f} | learning rate: 1.500000E-04 | global batch size:   256 "
        f"| lm loss: {draw.uniform(2, 3):.6E} | loss scale: 1.0 | grad norm: {draw.uniform(0.1, 0.9):.3f} | number "
        "of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )


def torchtitan(step: int, draw: random.Random) -> str:
    return (
        f"[rank0]:[titan] 2025-06-26 18:{minute(step)},486 - root - INFO - \x1b[31mstep: {step:2d}  "
        f"\x1b[32mloss: {draw.uniform(2, 3):8.5f}  \x1b[38;2;180;60;0mgrad_norm: {draw.uniform(0, 1):7.4f}  "
        f"\x1b[34mmemory: 47.32GiB(59.82%)  \x1b[36mtps: {draw.randint(6000, 7000):,}  "
        f"\x1b[35mtflops: 371.02  mfu: 37.51%\x1b[39m\n"
    )


def nccl(step: int, draw: random.Random) -> str:
    channel = draw.randint(0, 31)
    return (
        f"node{draw.randint(1, 64):03d}:{draw.randint(1000, 9999)}:{draw.randint(1000, 9999)} [{channel % 8}] NCCL "
        f"INFO Channel {channel:02d}/0 : {step % 64}[{step % 8}] -> {(step + 1) % 64}[{(step + 1) % 8}] via SHM\n"
    )


def warning(step: int, draw: random.Random) -> str:
    return (
        f"/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py:{draw.randint(1, 2000)}: UserWarning: a "
        f"function was called with arguments that will be removed; call number {step}\n"
    )


def trainer(step: int, draw: random.Random) -> str:
    bars = "".join(
        f"\r {step % 100:2d}%|████      | {step}/1000000 [{step // 3600}:{minute(step)}<1:04:17,  1.00s/it]"
        for _ in range(4)
    )
    values = f"'loss': {draw.uniform(2, 3):.4f}, 'grad_norm': 1.41, 'learning_rate': 2e-06, 'epoch': 0.01"
    return f"{bars}\r{' ' * 60}\r{{{values}}}\n"


def verl(step: int, draw: random.Random) -> str:
    others = " - ".join(f"critic/value_{one}/mean:{draw.random():.3f}" for one in range(40))
    return (
        f"\x1b[36m(TaskRunner pid=678203)\x1b[0m step:{step} - {others} - actor/pg_loss:{draw.random():.3f} - "
        f"timing_s/gen:{draw.uniform(70, 80):.3f} - timing_s/step:{draw.uniform(240, 260):.3f} - "
        f"perf/throughput:1036.956\n"
    )


def mixed(step: int, draw: random.Random) -> str:
    line = draw.choices((nccl, warning, megatron, torchtitan, trainer, verl), (40, 35, 10, 5, 8, 2))[0]
    return line(step, draw)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=float, default=32.0)
    options = parser.parse_args()
    began_s = time.process_time()
    sum(range(10**7))
    print(json.dumps({"log": "none: a sum of 10 million numbers", "cpu_s": round(time.process_time() - began_s, 3)}))
    with tempfile.TemporaryDirectory() as folder:
        for line in (mixed, megatron, torchtitan, nccl, warning, trainer, verl):
            path = Path(folder, f"{line.__name__}.log")
            draw = random.Random(1)
            size_bytes, step = 0, 0
            with path.open("w", encoding="utf-8") as file:
                while size_bytes < options.mb * units.MEGA:
                    step += 1
                    text = line(step, draw)
                    size_bytes += len(text.encode())
                    file.write(text)
            began_s = time.process_time()
            evidence = read_evidence([path])
            took_s = time.process_time() - began_s
            print(json.dumps({
                "log": line.__name__, "size_bytes": size_bytes, "lines": step, "steps_read": len(evidence.steps),
                "cpu_s": round(took_s, 2), "bytes_per_s": round(size_bytes / took_s),
            }))  # fmt: skip


if __name__ == "__main__":
    main()
