"""Collective operations as nccl-tests counts them: what the size of one is, and the bandwidths that follow from it."""

from __future__ import annotations

from typing import Literal, cast, get_args

from scalewright.errors import ConfigError, nearest

CollectiveOp = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send-recv"]
OPS = cast(tuple[CollectiveOp, ...], get_args(CollectiveOp))
REDUCING: tuple[CollectiveOp, ...] = ("all-reduce", "reduce-scatter")
SPLIT: tuple[CollectiveOp, ...] = ("all-gather", "reduce-scatter", "all-to-all")
"""Their buffer is cut into one part per rank. A call gets the elements of one part; the size is that of the whole."""
ALIGN_BYTES = 16
"""A part begins at a multiple of this."""


def parse_op(text: str) -> CollectiveOp:
    """The operation of a name, with - or _ between its words."""
    name = text.strip().lower().replace("_", "-")
    if name not in OPS:
        near = nearest(name, OPS)
        hint = f"did you mean {near[0]}?" if near else f"choose among {', '.join(OPS)}"
        raise ConfigError(f"operation {text.strip()!r} is not known: {hint}")
    return name


def num_elements(op: CollectiveOp, *, size_bytes: int, element_bytes: int, num_ranks: int) -> int:
    """Elements to pass to the call: of the whole buffer, or of one rank's part if the operation is in `SPLIT`.

    A part is rounded down to whole `ALIGN_BYTES`, as in nccl-tests; 0 if the size has less than that for each rank.
    """
    elements = size_bytes // element_bytes
    if op not in SPLIT:
        return elements
    per_line = max(1, ALIGN_BYTES // element_bytes)
    return elements // num_ranks // per_line * per_line


def total_bytes(op: CollectiveOp, *, num_elements: int, element_bytes: int, num_ranks: int) -> int:
    """Size of an operation: the larger of a rank's two buffers, which for a `SPLIT` one is all parts together."""
    return num_elements * element_bytes * (num_ranks if op in SPLIT else 1)


def bus_share(op: str, num_ranks: int) -> float:
    """What a link carries over the size of the operation: bus bandwidth = algorithm bandwidth x this.

    Equation  all-reduce 2 (n-1)/n;  all-gather, reduce-scatter, all-to-all (n-1)/n;  broadcast, send and receive 1
    Source    nccltests2016 (NCCL Tests, doc/PERFORMANCE.md)
    Assumes   every element crosses links between ranks that are all equally fast
    Checked   tests/golden/test_nccl_tests_columns.py: 21 rows of 8 H100
    """
    n = num_ranks
    if op == "all-reduce":
        return 2.0 * (n - 1) / n
    return (n - 1) / n if op in SPLIT else 1.0


def bandwidths_bytes_per_s(op: str, *, size_bytes: float, time_s: float, num_ranks: int) -> tuple[float, float]:
    """Algorithm and bus bandwidth of one operation that took `time_s`."""
    algorithm = size_bytes / time_s
    return algorithm, algorithm * bus_share(op, num_ranks)
