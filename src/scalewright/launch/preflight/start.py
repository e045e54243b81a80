"""Start a pre-flight check: on this machine, or on the nodes of the allocation that we are inside of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalewright.errors import EnvironmentFailedError
from scalewright.here.devices import num_cores
from scalewright.launch.ranks import allocation
from scalewright.launch.ranks.local import run_ranks
from scalewright.records.documents import read_document, write_document
from scalewright.records.preflight import RESULT_KIND, PreflightRequest
from scalewright.records.run_directory import RunDirectory

KIND = "preflight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many ranks, and on how many nodes."""

    num_ranks: int
    num_nodes: int

    @property
    def ranks_per_node(self) -> int:
        return -(-self.num_ranks // self.num_nodes)


def shape_here(env: Mapping[str, str], *, num_ranks: int, num_gpus: int) -> Shape:
    """0 ranks: one per task or GPU of the allocation; outside of any one per GPU, or two on a CPU, which can talk."""
    if allocation.is_inside(env):
        return Shape(num_ranks=num_ranks or allocation.default_num_ranks(env), num_nodes=allocation.num_nodes(env))
    return Shape(num_ranks=num_ranks or num_gpus or 2, num_nodes=1)


def check_nodes(
    directory: RunDirectory, request: PreflightRequest, env: Mapping[str, str], shape: Shape
) -> dict[str, Any]:
    """Run the check to its end; the result that rank 0 wrote."""
    write_document(directory.preflight_request, request.as_document())
    directory.preflight_result.unlink(missing_ok=True)
    if allocation.is_inside(env):
        code = allocation.run_in_allocation(
            env, directory, kind=KIND, num_ranks=shape.num_ranks, on_events=lambda _: None
        )
    else:
        code = run_ranks(
            directory, kind=KIND, num_ranks=shape.num_ranks, num_cores=num_cores(), on_events=lambda _: None
        )
    if not directory.preflight_result.exists():
        raise EnvironmentFailedError(
            f"the check ended with exit code {code} and without a result: see {directory.logs} or srun's words above"
        )
    return read_document(directory.preflight_result, RESULT_KIND)
