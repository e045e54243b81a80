"""Operators of convolutional networks as they were measured on a machine: convolutions by shape, norms, activations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from scalewright.workload.convolutions import Conv

FOLDED_CHANNELS, FOLDED_KERNEL, FOLD = 16, 4, 2
"""A first convolution of 7x7 over three channels, folded for matrix units (run/vision/model.py)."""
SAME_UNITS = {"fp16": "bf16", "bf16": "fp16"}
"""Products of both run on the same units at the same rate."""


class Passes(NamedTuple):
    """Seconds per image of a convolution's three products."""

    forward_s: float
    input_s: float | None
    """None where it was not measured: a first convolution needs none."""
    weight_s: float


class Key(NamedTuple):
    """A convolution in a precision and layout."""

    precision: str
    channels_last: bool
    channels_in: int
    channels_out: int
    kernel: int
    in_size: int
    out_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredConvolutions:
    """What `bench convolution` measured. Times are per image, of batches that fill the device."""

    times: Mapping[Key, Passes]
    rates: Mapping[tuple[str, str, str, bool], float]
    """Bytes per second of norms, activations and pooling by operator, direction, precision and channels last, over
    crossings as counted."""
    batch: int
    """Images of a batch that they were measured with."""

    @property
    def are_measured(self) -> bool:
        return bool(self.times or self.rates)

    def of(self, conv: Conv, *, precision: str, channels_last: bool) -> Passes | None:
        """A convolution of this very shape; None where not all of it was measured."""
        for name in (precision, SAME_UNITS.get(precision, precision)):
            passes = self.times.get(Key(name, channels_last, *_sizes(conv)))
            if passes is not None and (conv.place == "stem" or passes.input_s is not None):
                return passes
        return None

    def alike(self, conv: Conv, *, precision: str, channels_last: bool) -> list[tuple[Conv, Passes]]:
        """Those with the same kernel: they show how far from a model such convolutions are."""
        same_kernel: list[tuple[Conv, Passes]] = []
        for name in (precision, SAME_UNITS.get(precision, precision)):
            for key, passes in self.times.items():
                is_alike = (key.precision, key.channels_last, key.kernel) == (name, channels_last, conv.kernel)
                if is_alike and (conv.place == "stem" or passes.input_s is not None):
                    same_kernel.append((_conv(key), passes))
            if same_kernel:
                return same_kernel
        return same_kernel

    def bytes_per_s(self, op: str, direction: str, *, precision: str, channels_last: bool) -> float | None:
        """Rate of norms, activations and pooling.

        Equation  sum of n c S / sum of n t,  over tensors of S bytes that n operators of a network cross c times in t
        Source    `bench convolution`, by the calibration
        Assumes   other networks have as many large and small tensors
        Checked   tests/costs/test_measured_convolutions.py
        """
        return self.rates.get((op, direction, precision, channels_last))


NOT_MEASURED = MeasuredConvolutions(times={}, rates={}, batch=0)
"""Of a machine on which `bench convolution` did not run."""


def _sizes(conv: Conv) -> tuple[int, int, int, int, int]:
    return conv.channels_in, conv.channels_out, conv.kernel, conv.in_size, conv.out_size


def _conv(key: Key) -> Conv:
    return Conv(
        part="measured", channels_in=key.channels_in, channels_out=key.channels_out, kernel=key.kernel,
        in_size=key.in_size, out_size=key.out_size,
    )  # fmt: skip


def folded_stem(conv: Conv) -> Conv:
    """The first convolution as matrix units take it: squares of pixels as channels, a smaller kernel, no stride."""
    return Conv(
        part=conv.part, channels_in=FOLDED_CHANNELS, channels_out=conv.channels_out, kernel=FOLDED_KERNEL,
        in_size=conv.in_size // FOLD + FOLDED_KERNEL - 1, out_size=conv.out_size, place="stem",
    )  # fmt: skip


def convolutions_of(rows: Iterable[Mapping[str, Any]]) -> MeasuredConvolutions:
    """From the rows of `bench convolution`; a shape without a product that every convolution has is left out."""
    seconds: dict[Key, dict[str, float]] = {}
    moved: dict[tuple[str, str, str, bool], tuple[float, float]] = {}
    batch = 0
    for row in rows:
        last = row["layout"] == "last"
        if row["op"] == "convolution":
            sizes = (row["channels_in"], row["channels_out"], row["kernel"], row["in_size"], row["out_size"])
            seconds.setdefault(Key(row["precision"], last, *sizes), {})[row["direction"]] = row["time_s"] / row["batch"]
            batch = max(batch, int(row["batch"]))
        else:
            key = (row["op"], row["direction"], row["precision"], last)
            size, time_s = moved.get(key, (0.0, 0.0))
            moved[key] = (size + row["count"] * row["bytes"], time_s + row["count"] * row["time_s"])
    times = {
        key: Passes(forward_s=times["forward"], input_s=times.get("input"), weight_s=times["weight"])
        for key, times in seconds.items()
        if {"forward", "weight"} <= set(times)
    }
    return MeasuredConvolutions(
        times=times, rates={key: size / time_s for key, (size, time_s) in moved.items()}, batch=batch
    )
