"""What plans are asked in these tests, resolved the way the command does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.planner.request import PlanOptions, PlanRequest, resolve_request

CATALOG = Catalog((packaged_data(),))


def request_for(model: str, system: str, *, counts: tuple[int, ...], global_batch: int, **more: Any) -> PlanRequest:
    options = PlanOptions(model=model, gpus=counts[0], global_batch=global_batch, **more)
    return replace(resolve_request(CATALOG, system, options), counts=counts)
