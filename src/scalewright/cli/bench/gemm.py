"""`scalewright bench gemm`: matrix products by shape and precision, and the best rate that any shape reaches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from scalewright.cli.bench.start import DeviceName, RunFolder, start_bench
from scalewright.cli.options import AsJson, CatalogFolder

if TYPE_CHECKING:
    from scalewright.workload.products import Product

ALL_PRECISIONS = {"cuda": "bf16,fp16,fp8,tf32,fp32", "cpu": "fp32,bf16"}
PrecisionText = Annotated[
    str, typer.Option(help="Some of fp32,tf32,fp16,bf16,fp8; auto: those the device has (fp32,bf16 on CPUs).")
]
ShapesText = Annotated[str | None, typer.Option(metavar="M,N,K;...", help="Products to measure.")]
SweepText = Annotated[str | None, typer.Option(help="square, or a model whose products are measured.")]


def run(
    precision: PrecisionText = "auto",
    shapes: ShapesText = None,
    sweep: SweepText = None,
    tokens: Annotated[int, typer.Option(help="Tokens of a model's micro-batch; 0: one of its sequences.")] = 0,
    best: Annotated[bool, typer.Option("--best", help="Search for the best rate; default without shapes.")] = False,
    device: DeviceName = "auto",
    budget: Annotated[str, typer.Option(help="Time for measuring; start-up comes on top.")] = "60 s",
    run_dir: RunFolder = None,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Time matrix products; find the shape with the best rate and what of it is sustained. Exit 3: throttled twice."""
    from scalewright import units
    from scalewright.here.devices import device_here
    from scalewright.workload.language_run import DeviceKind
    from scalewright.workload.micro_run import GemmRun, as_precisions

    budget_s = units.parse(budget, units.SECONDS)
    products = _products(shapes, sweep, tokens, best, catalog)
    place = device_here(device, num_ranks=1)
    config = GemmRun(
        precisions=as_precisions(ALL_PRECISIONS[place] if precision == "auto" else precision),
        products=products,
        finds_best=best or (shapes is None and sweep is None),
        skips_missing=precision == "auto",
        device=cast(DeviceKind, place),
        budget_s=budget_s,
    )
    start_bench("gemm", config.document(), run_dir=run_dir, as_json=as_json)


def _products(
    shapes: str | None, sweep: str | None, tokens: int, best: bool, catalog: Path | None
) -> tuple[Product, ...]:
    """Given shapes, then a sweep's; without either, squares, unless only the best rate was asked for."""
    from scalewright.catalog.library import open_catalog
    from scalewright.errors import ConfigError
    from scalewright.workload.micro_run import parse_products, square_products
    from scalewright.workload.named import resolve_model
    from scalewright.workload.products import model_products

    if tokens < 0 or (tokens and sweep in (None, "square")):
        raise ConfigError(
            f"--tokens {tokens} belongs to the products of a model: name one with --sweep, or leave it out"
        )
    given = parse_products(shapes) if shapes is not None else ()
    if sweep is None:
        return given if given or best else square_products()
    if sweep == "square":
        return (*given, *square_products())
    shape = resolve_model(open_catalog(catalog), sweep).transformer
    return (*given, *model_products(shape, num_tokens=tokens or shape.seq))
