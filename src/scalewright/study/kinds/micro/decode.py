"""Decode steps and prompts of our engine on one device, over batch and context."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.catalog.types import TransformerShape
from scalewright.records.measurements import Measurements
from scalewright.study.kinds.micro.kind import MicroKind, largest
from scalewright.study.kinds.options import STRICT
from scalewright.workload.generate_run import EngineExecution, WeightPrecision
from scalewright.workload.language_run import check_runs_here, shape_document
from scalewright.workload.layout import Layout
from scalewright.workload.micro_run import DecodeRun, parse_numbers
from scalewright.workload.named import resolve_model
from scalewright.workload.run_options import DeviceKind

DEFAULTS = {
    "cpu": {"batches": "1,4,16,64", "contexts": "64,256", "prompts": "32,128,256"},
    "cuda": {"batches": "1,4,16,64", "contexts": "256,1024,4096", "prompts": "128,512,2048"},
}


SPARE_POSITIONS = 512
"""Positions for the tokens that are written while the steps are timed."""


@checked(frozen=True, kw_only=True, config=STRICT)
class DecodeOptions:
    """Options of a point of this kind."""

    model: str
    batches: str = ""
    """Sequences of a step, separated by commas; empty: what suits the device."""
    contexts: str = ""
    prompts: str = ""
    precision: str = "auto"
    """Some of fp32,bf16,fp8; auto: bf16 on GPUs, fp32 on CPUs."""
    execution: str = "auto"
    ranks: int | None = None
    device: str = "auto"
    budget: str = "30 s"


class DecodeKind(MicroKind[DecodeOptions]):
    name = "decode"
    options = TypeAdapter(DecodeOptions)
    metrics = ("memory_bytes_per_s", "tokens_per_s")

    def config(self, catalog: Catalog, options: DecodeOptions, *, device: DeviceKind, folder: Path) -> DecodeRun:
        del folder
        usual = DEFAULTS["cpu" if device == "cpu" else "cuda"]
        auto = "fp32" if device == "cpu" else "bf16"
        spec = resolve_model(catalog, options.model)
        check_runs_here(spec.id, spec.transformer, Layout())
        contexts, prompts = (
            parse_numbers(getattr(options, name) or usual[name], flag=name) for name in ("contexts", "prompts")
        )
        precisions = (auto if options.precision == "auto" else options.precision).split(",")
        return DecodeRun(
            model_id=spec.id,
            shape=shape_document(_with_positions(spec.transformer, 2 * max(*contexts, *prompts) + SPARE_POSITIONS)),
            precisions=cast(tuple[WeightPrecision, ...], tuple(name.strip() for name in precisions)),
            batches=parse_numbers(options.batches or usual["batches"], flag="batches"),
            contexts=contexts,
            prompts=prompts,
            execution=cast(EngineExecution, options.execution),
            device=device,
            budget_s=units.parse(options.budget, units.SECONDS),
        )

    def numbers(self, measurements: Measurements) -> dict[str, float | None]:
        decode = [row for row in measurements.rows if row["phase"] == "decode"]
        return {
            "memory_bytes_per_s": largest(decode, "bytes_per_s"),
            "tokens_per_s": largest(decode, "tokens_per_s"),
        }


def _with_positions(shape: TransformerShape, num: int) -> TransformerShape:
    """Learned positions for the longest sequence: weights are random anyway."""
    if shape.positions != "learned" or shape.num_positions >= num:
        return shape
    return shape.model_copy(update={"num_positions": num})


KIND = DecodeKind()
