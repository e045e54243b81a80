"""How long a set of Kineto traces takes to read and to break down, and how much memory that needs.

    python benchmarks/trace_speed.py                      8 ranks, 500 MB in all, into a temporary folder
    python benchmarks/trace_speed.py --ranks 2 --megabytes 20 --packed

The traces are made here, event by event as Kineto writes them: operators of the host with shapes, launches, flows,
kernels on two streams, collectives with their groups. Every step has the same known parts, and one rank computes
slower, so that the answer is checked, not only timed.

Exit 1: over the time, over the memory, or another answer than the known one.
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SLOW_RANK = 5
NUM_LAYERS = 32
KERNELS_PER_LAYER = 12
KERNEL_US = 40.0
GAP_US = 2.0
SUM_US = 300.0
"""Of a layer's gradients over the data-parallel group, beside the next layer's kernels; the last one is exposed."""
LIMIT_S, LIMIT_BYTES = 60.0, 2e9
CHILD = """
import json, resource, sys, time
from pathlib import Path
started = time.perf_counter()
from scalewright.observe.findings.catalogue import every_rule
from scalewright.observe.findings.rule import FindingContext
from scalewright.observe.readers.reading import read_evidence
evidence = read_evidence([Path(sys.argv[1])])
read_s = time.perf_counter() - started
seen = [(rule.id, one.message) for rule in every_rule() for one in rule.check(evidence, FindingContext())]
print(json.dumps({
    "read_s": read_s, "whole_s": time.perf_counter() - started, "cpu_s": time.process_time(),
    "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    "problems": [one.problem for one in evidence.sources if one.problem], "findings": seen,
    "times": [[t.rank, t.step, t.step_s, t.compute_s, t.exposed_communication_s, t.overlapped_communication_s, t.idle_s]
              for t in evidence.rank_times],
}))
"""


def event(category: str, name: str, at_us: float, length_us: float, lane: int, args: str) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": 4242, "tid": {lane},\n'
        f'    "ts": {at_us:.3f}, "dur": {length_us:.3f},\n    "args": {{\n      {args}\n    }}\n  }},\n'
    )


def flow(phase: str, number: int, at_us: float, lane: int) -> str:
    return (
        f'  {{\n    "ph": "{phase}", "id": {number}, "pid": 4242, "tid": {lane}, "ts": {at_us:.3f},\n'
        '    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  },\n'
    )


OPERATORS = (
    "aten::linear",
    "aten::addmm",
    "aten::gelu",
    "aten::layer_norm",
    "aten::add",
    "aten::_flash_attention_forward",
)
SUM_KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
KERNELS = (
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)>(int)",
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t>>(Flash_params)",
)


def layers_us(kernel_us: float) -> float:
    return NUM_LAYERS * KERNELS_PER_LAYER * (kernel_us + GAP_US)


SLOW_FACTOR = 1.2
WHOLE_US = layers_us(SLOW_FACTOR * KERNEL_US) + SUM_US
"""Of a step of every rank: they leave the last sum together."""


def step_events(*, number: int, start_us: float, kernel_us: float, first_id: int) -> Iterator[str]:
    """One step: layers of kernels back to back, a sum of gradients beside the following layer, the last one alone.

    Ranks that are ready earlier wait in the last sum.
    """
    layer_us = KERNELS_PER_LAYER * (kernel_us + GAP_US)
    whole_us = WHOLE_US
    yield event("user_annotation", f"ProfilerStep#{number}", start_us, whole_us, 1, f'"External id": {first_id}')
    link = first_id
    for layer in range(NUM_LAYERS):
        at_us = start_us + layer * layer_us
        for place in range(KERNELS_PER_LAYER):
            link += 1
            begin_us = at_us + place * (kernel_us + GAP_US)
            host_us = max(begin_us - 30.0, start_us)
            shapes = f'"External id": {link},"Sequence number": {link}, "Fwd thread id": 0, "Record function id": 0, '
            shapes += '"Concrete Inputs": ["", "", ""], "Input type": ["c10::BFloat16", "c10::BFloat16", ""], '
            shapes += '"Input Strides": [[4096, 1], [1, 4096], []], "Input Dims": [[8192, 4096], [4096, 4096], []], '
            yield event("cpu_op", OPERATORS[place % 6], host_us, 12.0, 1, shapes + f'"Ev Idx": {link}')
            yield event(
                "cuda_runtime", "cudaLaunchKernel", host_us + 4.0, 5.0, 1,
                f'"External id": {link}, "cbid": 211, "correlation": {link}',
            )  # fmt: skip
            yield flow("s", link, host_us + 4.0, 1)
            yield flow("f", link, begin_us, 7)
            yield event("kernel", KERNELS[place % 3], begin_us, kernel_us, 7, (
                f'"External id": {link}, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": {link}, '
                '"registers per thread": 128, "shared memory": 49152, "blocks per SM": 2.0, "warps per SM": 16.0, '
                '"grid": [64, 16, 1], "block": [256, 1, 1], "est. achieved occupancy %": 25'
            ))  # fmt: skip
        link += 1
        begin_us = at_us + layer_us
        yield event("cuda_runtime", "cudaLaunchKernelExC", begin_us - 20.0, 5.0, 1, f'"correlation": {link}')
        sum_us = SUM_US if layer < NUM_LAYERS - 1 else start_us + whole_us - begin_us
        yield event("kernel", SUM_KERNEL, begin_us, sum_us, 20, (
            f'"External id": {link}, "device": 0, "stream": 20, "correlation": {link}, "Collective name": "allreduce", '
            '"In msg nelems": 50331648, "Out msg nelems": 50331648, "Group size": 8, "dtype": "BFloat16", '
            '"Process Group Name": "1", "Process Group Description": "mesh_dp", '
            '"Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"'
        ))  # fmt: skip


def write_trace(path: Path, *, rank: int, num_ranks: int, size_bytes: float) -> int:
    """A trace of about this size; its number of steps."""
    opener = gzip.open if path.suffix == ".gz" else open
    kernel_us = KERNEL_US * (SLOW_FACTOR if rank == SLOW_RANK else 1.0)
    head = {
        "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": num_ranks}, "displayTimeUnit": "ms",
    }  # fmt: skip
    num_steps, written, at_us, link = 0, 0, 1e9 + rank * 777.0, 1
    with opener(path, "wt") as file:
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        while written < size_bytes:
            text = "".join(step_events(number=10 + num_steps, start_us=at_us, kernel_us=kernel_us, first_id=link))
            file.write(text)
            written += len(text)
            at_us += WHOLE_US
            link += NUM_LAYERS * (KERNELS_PER_LAYER + 1) + 1
            num_steps += 1
        file.write('  {"ph": "i", "s": "g", "name": "Record Window End", "ts": 0}\n], "traceName": "made here"\n}\n')
    return num_steps


def problems_of(result: dict[str, Any], *, num_ranks: int, num_steps: int) -> list[str]:
    """Where the answer is not the known one."""
    problems = []
    if len(result["times"]) != num_ranks * num_steps:
        problems.append(f"{len(result['times'])} times of ranks and steps, not {num_ranks * num_steps}")
    for rank, step, step_s, compute_s, exposed_s, overlapped_s, _ in result["times"]:
        kernel_us = KERNEL_US * (SLOW_FACTOR if rank == SLOW_RANK else 1.0)
        compute = NUM_LAYERS * KERNELS_PER_LAYER * kernel_us / 1e6
        sums = (NUM_LAYERS * SUM_US + WHOLE_US - SUM_US - layers_us(kernel_us)) / 1e6
        if abs(compute_s - compute) > 1e-6 or abs(exposed_s + overlapped_s - sums) > 1e-6:
            problems.append(f"rank {rank} step {step}: {compute_s} s of computing in {step_s} s, not {compute} s")
    return problems


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--ranks", type=int, default=8)
    options.add_argument("--megabytes", type=float, default=500.0, help="Of all ranks, unpacked.")
    options.add_argument("--packed", action="store_true", help="Write .json.gz.")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        num_steps = 0
        for rank in range(given.ranks):
            path = Path(folder, f"rank-{rank}.json" + (".gz" if given.packed else ""))
            size_bytes = given.megabytes * 1e6 / given.ranks
            num_steps = write_trace(path, rank=rank, num_ranks=given.ranks, size_bytes=size_bytes)
        written = sum(path.stat().st_size for path in Path(folder).iterdir())
        print(f"made {given.ranks} traces of {num_steps} steps, {written / 1e6:.0f} MB, in "
              f"{time.perf_counter() - started:.0f} s")  # fmt: skip
        done = subprocess.run([sys.executable, "-c", CHILD, folder], capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    print(f"read and broken down in {result['read_s']:.1f} s, with findings {result['whole_s']:.1f} s "
          f"({result['cpu_s']:.1f} s of CPU time), peak memory {result['peak_bytes'] / 1e6:.0f} MB")  # fmt: skip
    for rule, message in result["findings"]:
        print(f"{rule}: {message}")
    problems = [*result["problems"], *problems_of(result, num_ranks=given.ranks, num_steps=num_steps)]
    if result["whole_s"] > LIMIT_S or result["peak_bytes"] > LIMIT_BYTES:
        problems.append(f"over {LIMIT_S:.0f} s or {LIMIT_BYTES / 1e9:.0f} GB")
    late = [message for rule, message in result["findings"] if rule == "critical-rank"]
    if given.ranks > SLOW_RANK and not any(f"for rank {SLOW_RANK}," in message for message in late):
        problems.append(f"rank {SLOW_RANK} is not named as the one that the others wait for")
    print("\n".join(problems[:10]) or "the answer is the known one")
    return 1 if problems else 0


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    raise SystemExit(main())
