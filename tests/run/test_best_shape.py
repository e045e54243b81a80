"""The search for the best shape finds a hill's top, tries no shape twice, and stops when told."""

from __future__ import annotations

import math

from scalewright.run.micro.best_shape import Shape, ShapeGrid, search

GRID = ShapeGrid(step=256, low=1024, high=16384)
TOP = (4096, 11264, 2048)


def hill(shape: Shape) -> float:
    """One at the top, falling with the logarithmic distance from it."""
    return math.exp(-sum(math.log(a / b) ** 2 for a, b in zip(shape, TOP, strict=True)))


class Counted:
    def __init__(self, limit: int) -> None:
        self.limit, self.seen = limit, list[Shape]()

    def rate(self, shape: Shape) -> float | None:
        self.seen.append(shape)
        return None if shape[0] > 12288 else hill(shape)

    def goes_on(self) -> bool:
        return len(self.seen) < self.limit


def test_finds_nearly_the_best_of_a_quarter_million_shapes() -> None:
    counted = Counted(200)
    tried = search(counted.rate, grid=GRID, seeds=((4096, 4096, 4096),), goes_on=counted.goes_on)
    best = max(tried.values())
    assert best > 0.98
    assert best > hill((4096, 4096, 4096)) * 1.2


def test_tries_no_shape_twice_and_only_shapes_of_the_grid() -> None:
    counted = Counted(300)
    tried = search(counted.rate, grid=GRID, seeds=((4096, 4096, 4096),), goes_on=counted.goes_on)
    assert len(counted.seen) == len(set(counted.seen))
    assert all(side % 256 == 0 and 1024 <= side <= 16384 for shape in counted.seen for side in shape)
    assert all(shape[0] <= 12288 for shape in tried)


def test_same_seed_same_search() -> None:
    first, second = Counted(80), Counted(80)
    for counted in (first, second):
        search(counted.rate, grid=GRID, seeds=(), goes_on=counted.goes_on)
    assert first.seen == second.seen


def test_stops_at_once_and_when_nothing_is_left() -> None:
    assert search(hill, grid=GRID, seeds=(TOP,), goes_on=lambda: False) == {}
    small = ShapeGrid(step=256, low=1024, high=1280)
    assert len(search(hill, grid=small, seeds=(), goes_on=lambda: True)) == 8
