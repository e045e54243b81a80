"""Search for the matrix shape with the highest rate: random points on a grid first, then hill climbing from the best.

Source  the idea of a maximum achievable rate found by search: stas00/ml-engineering, compute/accelerator, MAMF finder
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Shape = tuple[int, int, int]
EXPLORED_FIRST = 24
"""Random points before climbing, beside the seeds."""
CLIMBS_PER_RANDOM = 12
"""Steps of climbing between two further random points, so that a search does not stay on one hill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeGrid:
    """Sides that are tried: multiples of `step` from `low` to `high`."""

    step: int
    low: int
    high: int

    @property
    def num_shapes(self) -> int:
        return ((self.high - self.low) // self.step + 1) ** 3

    def nearest(self, side: float) -> int:
        whole = round(side / self.step) * self.step
        return min(self.high, max(self.low, whole))

    def random_shape(self, chance: random.Random) -> Shape:
        """A random shape, uniform on a logarithmic scale: small sides matter as much as large ones."""
        span = self.high / self.low
        m, n, k = (self.nearest(self.low * span ** chance.random()) for _ in range(3))
        return m, n, k


def search(
    rate_of: Callable[[Shape], float | None],
    *,
    grid: ShapeGrid,
    seeds: Sequence[Shape],
    goes_on: Callable[[], bool],
    seed: int = 0,
) -> dict[Shape, float]:
    """Rates of all shapes that were tried. `rate_of` returns None for a shape that cannot be measured."""
    chance = random.Random(seed)
    tried: dict[Shape, float] = {}
    barred: set[Shape] = set()
    climbed: set[Shape] = set()

    def attempt(shape: Shape) -> None:
        if shape in tried or shape in barred:
            return
        rate = rate_of(shape)
        if rate is None:
            barred.add(shape)
        else:
            tried[shape] = rate

    for shape in (*seeds, *(grid.random_shape(chance) for _ in range(EXPLORED_FIRST))):
        if not goes_on():
            return tried
        attempt(shape)
    while goes_on():
        for shape in _uphill(tried, climbed, grid, limit=CLIMBS_PER_RANDOM):
            if not goes_on():
                return tried
            attempt(shape)
        attempt(grid.random_shape(chance))
        if len(tried) + len(barred) >= grid.num_shapes:
            break
    return tried


def _uphill(tried: dict[Shape, float], climbed: set[Shape], grid: ShapeGrid, *, limit: int) -> Iterator[Shape]:
    """Neighbours of the best shape whose neighbours were not tried yet."""
    fresh = [shape for shape in sorted(tried, key=lambda s: tried[s], reverse=True) if shape not in climbed]
    if not fresh:
        return
    top = fresh[0]
    climbed.add(top)
    around = []
    for axis in range(3):
        for side in (grid.nearest(top[axis] * 1.25), grid.nearest(top[axis] * 0.8), top[axis] + grid.step,
                     top[axis] - grid.step):  # fmt: skip
            moved = list(top)
            moved[axis] = grid.nearest(side)
            around.append((moved[0], moved[1], moved[2]))
    yield from [shape for shape in dict.fromkeys(around) if shape != top][:limit]
