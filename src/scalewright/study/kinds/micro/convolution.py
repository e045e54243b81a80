"""Convolutions, norms and activations of a residual network's training step, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.catalog.types import ConvShape
from scalewright.costs.machine.measured_convolutions import folded_stem
from scalewright.errors import NotExpressedError
from scalewright.records.measurements import Measurements
from scalewright.study.kinds.micro.kind import MicroKind, largest
from scalewright.study.kinds.options import STRICT
from scalewright.workload.convolution_run import ConvolutionCase, ConvolutionLayout, ConvolutionRun, cases_of
from scalewright.workload.convolutions import resnet_convs
from scalewright.workload.micro_run import as_precisions
from scalewright.workload.named import resolve_model
from scalewright.workload.run_options import DeviceKind
from scalewright.workload.vision_run import VisionPrecision

DEFAULT_PRECISIONS = {"cuda": "bf16,fp32", "cpu": "fp32"}
DEFAULT_BATCH = {"cuda": 128, "cpu": 8}


@checked(frozen=True, kw_only=True, config=STRICT)
class ConvolutionOptions:
    """Options of `bench convolution`, and of a point of this kind."""

    model: str = "resnet-50"
    precision: str = "auto"
    """Some of fp32,tf32,fp16,bf16; auto: bf16,fp32 on GPUs, fp32 on CPUs."""
    layout: str = "last"
    """Where channels lie in memory: last, first, or both."""
    batch: int = 0
    """Images of a call; 0: 128 on GPUs, 8 on CPUs."""
    size: int = 0
    """Side of an image in pixels; 0: the model's own."""
    folded_stem: bool = False
    """Also measure the first convolution as training folds it."""
    skip_missing: bool = False
    """Leave out precisions that the device lacks instead of refusing them; always so for auto."""
    ranks: int | None = None
    device: str = "auto"
    budget: str = "60 s"


class ConvolutionKind(MicroKind[ConvolutionOptions]):
    name = "convolution"
    options = TypeAdapter(ConvolutionOptions)
    metrics = ("flop_per_s_per_gpu",)

    def config(
        self, catalog: Catalog, options: ConvolutionOptions, *, device: DeviceKind, folder: Path
    ) -> ConvolutionRun:
        del folder
        usual = "cpu" if device == "cpu" else "cuda"
        precisions = as_precisions(DEFAULT_PRECISIONS[usual] if options.precision == "auto" else options.precision)
        layouts = ("last,first" if options.layout == "both" else options.layout).split(",")
        return ConvolutionRun(
            precisions=cast(tuple[VisionPrecision, ...], precisions),
            layouts=cast(tuple[ConvolutionLayout, ...], tuple(name.strip() for name in layouts if name.strip())),
            batch=options.batch or DEFAULT_BATCH[usual],
            cases=_cases(catalog, options),
            skips_missing=options.skip_missing or options.precision == "auto",
            device=device,
            budget_s=units.parse(options.budget, units.SECONDS),
        )

    def numbers(self, measurements: Measurements) -> dict[str, float | None]:
        return {"flop_per_s_per_gpu": largest(measurements.rows, "flop_per_s")}


def _cases(catalog: Catalog, options: ConvolutionOptions) -> tuple[ConvolutionCase, ...]:
    spec = resolve_model(catalog, options.model)
    if not isinstance(spec.shape, ConvShape):
        raise NotExpressedError(f"{spec.id} is no residual network: choose one such as resnet-50")
    shape = spec.shape.model_copy(update={"image_size": options.size or spec.shape.image_size})
    if not options.folded_stem:
        return cases_of(shape)
    stem = folded_stem(next(iter(resnet_convs(shape))))
    folded = ConvolutionCase(
        channels_in=stem.channels_in, channels_out=stem.channels_out, kernel=stem.kernel, in_size=stem.in_size,
        out_size=stem.out_size, has_input_gradient=False,
    )  # fmt: skip
    return (*cases_of(shape), folded)


KIND = ConvolutionKind()
