"""Loss scaling of 16-bit floats with a short exponent: small gradients would vanish without it."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_LOSS_SCALE = 2.0**15
GROWTH_EVERY = 1000


@dataclass(slots=True)
class LossScale:
    """fp16 loss scaling: halve after an overflow, double after many good steps."""

    value: float
    good_steps: int = 0

    def after(self, *, overflowed: bool) -> None:
        if overflowed:
            self.value, self.good_steps = max(self.value / 2.0, 1.0), 0
            return
        self.good_steps += 1
        if self.good_steps >= GROWTH_EVERY:
            self.value, self.good_steps = self.value * 2.0, 0
