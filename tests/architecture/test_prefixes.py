"""Only `units` knows prefixes: no other module multiplies or divides by a literal power of 1000 or 1024, or by 3600."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "scalewright"
FACTORS = {
    *(1000.0**power for power in (1, 2, 3, 4, 5, -1, -2, -3)),
    *(1024.0**power for power in (1, 2, 3, 4)),
    3600.0,
    86400.0,
}
ALLOWED = {
    "planner/search/smallest_change.py": "1e-3 is the weight of activations in a ranking, not a conversion",
}
"""Files with such a factor that is no prefix, and why."""


def constant(node: ast.AST) -> float | None:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, power = constant(node.left), constant(node.right)
        return base**power if base is not None and power is not None and abs(power) < 100 else None
    return None


def prefixes_in(text: str) -> Iterator[int]:
    """Lines that multiply or divide by a prefix."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv):
            continue
        if constant(node.left) in FACTORS or constant(node.right) in FACTORS:
            yield node.lineno


@pytest.mark.parametrize("expression", ["x * 1e9", "x / 1024", "size // 2**20", "1024**3 * x", "hours * 3600.0"])
def test_a_prefix_is_seen(expression: str) -> None:
    assert list(prefixes_in(expression)) == [1]


@pytest.mark.parametrize("expression", ["x * 100", "x + 1000", "limit > 1e6", "x * units.GIGA"])
def test_other_numbers_are_not_prefixes(expression: str) -> None:
    assert not list(prefixes_in(expression))


def test_prefixes_are_in_units_only() -> None:
    lines_by_file = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        lines = list(prefixes_in(path.read_text()))
        if lines and name != "units.py":
            lines_by_file[name] = lines
    problems = {name: lines for name, lines in lines_by_file.items() if name not in ALLOWED}
    assert not problems, "use units.GIGA, units.MIB, units.HOUR_S, ... or units.format"
    assert set(lines_by_file) == set(ALLOWED), "a file in ALLOWED has no such factor any more"
