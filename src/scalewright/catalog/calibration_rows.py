"""What a row of a calibration must hold: fits of collectives and times of convolutions, with their types and limits."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

LARGEST_TIME_S = 1e6
LARGEST_BYTES_PER_S = 1e18
"""Bytes per second: a thousand times the fastest memory of any node."""
Size = Annotated[int, Field(ge=1, le=2**53)]
SmallCount = Annotated[int, Field(ge=1, le=10**9)]
MOST_BUS_FRAC = 2.0
"""Of an all-reduce over many ranks."""
Time = Annotated[float, Field(gt=0.0, le=LARGEST_TIME_S)]


class _CalibrationRow(BaseModel):
    """Other keys are kept as they are: a benchmark may write more than a prediction needs."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class CollectiveRow(_CalibrationRow):
    """One line of time over size of one operation."""

    op: str
    dtype: str
    num_ranks: int = Field(ge=2, le=10**9)
    num_nodes: SmallCount
    from_bytes: int = Field(ge=0, le=2**53)
    alpha_s: float = Field(ge=-LARGEST_TIME_S, le=LARGEST_TIME_S)
    bytes_per_s: float = Field(gt=0.0, le=LARGEST_BYTES_PER_S)

    @model_validator(mode="after")
    def _is_positive_from_its_first_size(self) -> Self:
        """A line that begins high up may meet size 0 below 0, but not its own first size."""
        if self.alpha_s < -MOST_BUS_FRAC * self.from_bytes / self.bytes_per_s:
            raise ValueError(f"alpha_s of {self.alpha_s:g} makes the time of {self.from_bytes} bytes negative")
        return self


class ConvolutionRow(_CalibrationRow):
    """One product of a convolution."""

    op: Literal["convolution"]
    precision: str
    layout: str
    direction: str
    batch: SmallCount
    channels_in: SmallCount
    channels_out: SmallCount
    kernel: SmallCount
    in_size: SmallCount
    out_size: SmallCount
    time_s: Time


class PixelRow(_CalibrationRow):
    """A norm, an activation or a pooling."""

    op: str
    precision: str
    layout: str
    direction: str
    count: SmallCount
    bytes: Size
    time_s: Time


_COLLECTIVE, _CONVOLUTION, _PIXELS = (TypeAdapter(kind) for kind in (CollectiveRow, ConvolutionRow, PixelRow))


def check_collective(row: dict[str, Any]) -> None:
    """Raise ValueError with the first key that is wrong."""
    _check(row, _COLLECTIVE, "collectives")


def check_convolution(row: dict[str, Any]) -> None:
    """Likewise, for a row of `bench convolution`."""
    _check(row, _CONVOLUTION if row.get("op") == "convolution" else _PIXELS, "convolutions")


def _check(row: dict[str, Any], adapter: TypeAdapter[Any], name: str) -> None:
    try:
        adapter.validate_python(row)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "the row"
        raise ValueError(f"a row of {name} has a wrong {key!r}: {first['msg'].lower()}") from error
