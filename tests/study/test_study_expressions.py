"""Derived values: arithmetic over a point's values, and nothing else."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalewright.errors import ConfigError
from scalewright.study.expressions import evaluate, fill

VALUES = {"nodes": 4, "gpus_per_node": 8, "scaling": "weak", "share": 0.5, "fast": True}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nodes * gpus_per_node", 32),
        ("192 * nodes if scaling == 'weak' else 1536", 768),
        ("192 * nodes if scaling != 'weak' else 1536", 1536),
        ("ceil(nodes / 3)", 2),
        ("max(nodes, 5) % 3", 2),
        ("2 ** nodes", 16),
        ("-nodes + 1", -3),
        ("scaling in ('weak', 'strong') and not fast", False),
        ("'gpt-' + scaling", "gpt-weak"),
    ],
)
def test_values(text: str, expected: object) -> None:
    assert evaluate(text, VALUES, where="study.toml") == expected


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "nodes.real",
        "[n for n in (1, 2)]",
        "(lambda: 1)()",
        "scaling * 1000000000",
        "2 ** 100000",
        "9 ** 9 ** 9",
        "nodes if",
        "1 / 0",
        "nods + 1",
        "f'{nodes}'",
        "open('/etc/passwd')",
        "1e400",
        "(1, 2)",
        "max(*'ab')",
        "x := 1",
        "nodes" + " + nodes" * 100,
    ],
)
def test_everything_else_is_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match=r"study\.toml") as refused:
        evaluate(text, VALUES, where="study.toml")
    assert "\n" not in str(refused.value)


@given(st.text(alphabet=string.printable, max_size=60))
def test_any_text_gives_a_value_or_a_refusal(text: str) -> None:
    try:
        value = evaluate(text, VALUES, where="study.toml")
    except ConfigError:
        return
    assert isinstance(value, str | int | float | bool)


def test_placeholders_are_filled_and_unknown_ones_named() -> None:
    assert fill("dp={nodes},sp={fast},x={share}", VALUES, where="study.toml") == "dp=4,sp=true,x=0.5"
    with pytest.raises(ConfigError, match="did you mean nodes"):
        fill("dp={node}", VALUES, where="study.toml")
