"""`scalewright bench convolution`: the operators of a residual network's training step, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from scalewright.cli.bench.start import DeviceName, RunFolder, start_bench
from scalewright.cli.options import AsJson, CatalogFolder

if TYPE_CHECKING:
    from scalewright.workload.convolution_run import ConvolutionCase

DEFAULT_PRECISIONS = {"cuda": "bf16,fp32", "cpu": "fp32"}
DEFAULT_BATCH = {"cuda": 128, "cpu": 8}
PrecisionText = Annotated[str, typer.Option(help="Some of fp32,tf32,fp16,bf16; auto: bf16,fp32 on GPUs, fp32 on CPUs.")]


def run(
    model: Annotated[str, typer.Option(help="Residual network whose operators are measured.")] = "resnet-50",
    precision: PrecisionText = "auto",
    layout: Annotated[str, typer.Option(help="Where channels lie in memory: last, first, or both.")] = "last",
    batch: Annotated[int, typer.Option(help="Images of a call; 0: 128 on GPUs, 8 on CPUs.")] = 0,
    size: Annotated[int, typer.Option(help="Side of an image in pixels; 0: the model's own.")] = 0,
    device: DeviceName = "auto",
    budget: Annotated[str, typer.Option(help="Time for measuring; start-up comes on top.")] = "60 s",
    run_dir: RunFolder = None,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Time a network's convolutions, norms and activations, forward and backward. Exit 3: throttled twice."""
    from scalewright import units
    from scalewright.here.devices import device_here
    from scalewright.workload.convolution_run import ConvolutionLayout, ConvolutionRun
    from scalewright.workload.language_run import DeviceKind
    from scalewright.workload.micro_run import as_precisions
    from scalewright.workload.vision_run import VisionPrecision

    budget_s = units.parse(budget, units.SECONDS)
    cases = _cases(model, size, catalog)
    place = device_here(device, num_ranks=1)
    chosen = DEFAULT_PRECISIONS[place] if precision == "auto" else precision
    layouts = tuple(part.strip() for part in ("last,first" if layout == "both" else layout).split(",") if part.strip())
    config = ConvolutionRun(
        precisions=cast(tuple[VisionPrecision, ...], as_precisions(chosen)),
        layouts=cast(tuple[ConvolutionLayout, ...], layouts),
        batch=batch or DEFAULT_BATCH[place],
        cases=cases,
        skips_missing=precision == "auto",
        device=cast(DeviceKind, place),
        budget_s=budget_s,
    )
    start_bench("convolution", config.document(), run_dir=run_dir, as_json=as_json)


def _cases(model: str, image_size: int, catalog: Path | None) -> tuple[ConvolutionCase, ...]:
    """The convolutions of a network of the catalogue, for images of a size."""
    from scalewright.catalog.library import open_catalog
    from scalewright.catalog.types import ConvShape
    from scalewright.errors import NotExpressedError
    from scalewright.workload.convolution_run import cases_of
    from scalewright.workload.named import resolve_model

    spec = resolve_model(open_catalog(catalog), model)
    if not isinstance(spec.shape, ConvShape):
        raise NotExpressedError(f"{spec.id} is no residual network: choose one such as resnet-50")
    return cases_of(spec.shape.model_copy(update={"image_size": image_size or spec.shape.image_size}))
