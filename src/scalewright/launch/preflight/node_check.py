"""Running the pre-flight check: on this machine, or on the nodes of the current allocation."""

from __future__ import annotations

import math
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
class CheckedRanks:
    """The number of ranks that take part in the check, and of nodes they run on."""

    num_ranks: int
    num_nodes: int

    @property
    def ranks_per_node(self) -> int:
        return math.ceil(self.num_ranks / self.num_nodes)


def ranks_here(env: Mapping[str, str], *, num_ranks: int, num_gpus: int) -> CheckedRanks:
    """`num_ranks` ranks. 0 means one per GPU or task of the allocation; outside, one per GPU, or two on a CPU."""
    if allocation.is_inside(env):
        return CheckedRanks(
            num_ranks=num_ranks or allocation.default_num_ranks(env), num_nodes=allocation.num_nodes(env)
        )
    return CheckedRanks(num_ranks=num_ranks or num_gpus or 2, num_nodes=1)


def check_nodes(
    directory: RunDirectory, request: PreflightRequest, env: Mapping[str, str], ranks: CheckedRanks
) -> dict[str, Any]:
    """Run the check and return the result that rank 0 wrote."""
    write_document(directory.preflight_request, request.as_document())
    directory.preflight_result.unlink(missing_ok=True)
    if allocation.is_inside(env):
        code = allocation.run_in_allocation(
            env, directory, kind=KIND, num_ranks=ranks.num_ranks, on_events=lambda _: None
        )
    else:
        code = run_ranks(
            directory, kind=KIND, num_ranks=ranks.num_ranks, num_cores=num_cores(), on_events=lambda _: None
        )
    if not directory.preflight_result.exists():
        raise EnvironmentFailedError(
            f"the check ended with exit code {code} and wrote no result: see {directory.logs} or the messages above"
        )
    return read_document(directory.preflight_result, RESULT_KIND)
