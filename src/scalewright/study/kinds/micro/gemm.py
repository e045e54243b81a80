"""Matrix products by shape and precision, and the best rate that any shape reaches."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.errors import ConfigError
from scalewright.records.measurements import Measurements
from scalewright.study.kinds.micro.kind import MicroKind, largest
from scalewright.study.kinds.options import STRICT
from scalewright.workload.micro_run import GemmRun, as_precisions, parse_products, square_products
from scalewright.workload.named import resolve_model
from scalewright.workload.products import Product, model_products
from scalewright.workload.run_options import DeviceKind

ALL_PRECISIONS = {"cuda": "bf16,fp16,fp8,tf32,fp32", "cpu": "fp32,bf16"}


@checked(frozen=True, kw_only=True, config=STRICT)
class GemmOptions:
    """Options of `bench gemm`, and of a point of this kind."""

    precision: str = "auto"
    """Some of fp32,tf32,fp16,bf16,fp8; auto: those that the device has."""
    shapes: str | None = None
    """M,N,K of each product, separated by semicolons."""
    sweep: str | None = None
    """square, or a model whose products are measured."""
    tokens: int = 0
    """Of a model's micro-batch; 0: one of its sequences."""
    best: bool = False
    """Search for the best rate; always so without shapes and sweep."""
    skip_missing: bool = False
    """Leave out precisions that the device lacks instead of refusing them; always so for auto."""
    ranks: int | None = None
    device: str = "auto"
    budget: str = "60 s"


class GemmKind(MicroKind[GemmOptions]):
    name = "gemm"
    options = TypeAdapter(GemmOptions)
    metrics = ("flop_per_s_per_gpu",)

    def config(self, catalog: Catalog, options: GemmOptions, *, device: DeviceKind, folder: Path) -> GemmRun:
        del folder
        auto = ALL_PRECISIONS["cpu" if device == "cpu" else "cuda"]
        return GemmRun(
            precisions=as_precisions(auto if options.precision == "auto" else options.precision),
            products=_products(catalog, options),
            finds_best=options.best or (options.shapes is None and options.sweep is None),
            skips_missing=options.skip_missing or options.precision == "auto",
            device=device,
            budget_s=units.parse(options.budget, units.SECONDS),
        )

    def numbers(self, measurements: Measurements) -> dict[str, float | None]:
        return {"flop_per_s_per_gpu": largest(measurements.rows, "flop_per_s")}


def _products(catalog: Catalog, options: GemmOptions) -> tuple[Product, ...]:
    """The given shapes, then those of the sweep. Without either: squares, unless only the best rate is wanted."""
    if options.tokens < 0 or (options.tokens and options.sweep in (None, "square")):
        raise ConfigError(
            f"--tokens {options.tokens} belongs to the products of a model: name one with --sweep, or leave it out"
        )
    shapes = parse_products(options.shapes) if options.shapes is not None else ()
    if options.sweep is None:
        return shapes if shapes or options.best else square_products()
    if options.sweep == "square":
        return (*shapes, *square_products())
    model = resolve_model(catalog, options.sweep).transformer
    return (*shapes, *model_products(model, num_tokens=options.tokens or model.seq))


KIND = GemmKind()
