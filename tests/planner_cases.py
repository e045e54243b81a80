"""What plans are asked in these tests, resolved the way the command does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.cli.planner.plan import resolve_request
from scalewright.planner.request import Request

CATALOG = Catalog((packaged_data(),))
DEFAULTS: dict[str, Any] = {
    "partition": None, "nodes": None, "seq": None, "precision": "auto", "stack": "auto", "fix": None,
    "objective": "time", "tokens": None, "steps": None, "budget": None, "walltime": None, "mode": "full",
    "stage": "pretrain", "top": 5,
}  # fmt: skip


def request_for(model: str, system: str, *, counts: tuple[int, ...], global_batch: int, **more: Any) -> Request:
    given = DEFAULTS | {"model": model, "gpus": counts[0], "global_batch": global_batch} | more
    return replace(resolve_request(CATALOG, system, given), counts=counts)
