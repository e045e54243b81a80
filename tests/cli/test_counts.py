"""One grammar for every count: what an option, a layout, a step, lengths, tokens, nodes or a study key counts."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer

from scalewright import units
from scalewright.cli.arguments import _numbers, plain_numbers
from scalewright.cli.main import app
from scalewright.errors import ConfigError, QuantityError
from scalewright.planner.generation import parse_generate
from scalewright.planner.request import parse_budget, parse_counts
from scalewright.study.kinds.training import read
from scalewright.workload.grammar import whole_number
from scalewright.workload.layout import parse_layout
from scalewright.workload.lengths import parse_lengths
from scalewright.workload.micro_run import parse_numbers
from scalewright.workload.model import from_shape
from scalewright.workload.rl import parse_rl

Cli = Callable[..., subprocess.CompletedProcess[str]]
WRITTEN = {"2Ki": 2048, "2k": 2000, "2048": 2048, "2e3": 2000, "0.5Mi": 2**19, "1.5k": 1500}
WRONG = ("2x", "2 kB", "1.5", "nan", "two", "0x10", "2K")


def commands(group: typer.Typer, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Callable[..., Any]]]:
    for one in group.registered_commands:
        assert one.callback is not None
        yield (*path, one.name or one.callback.__name__.replace("_", "-")), one.callback
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from commands(inner.typer_instance, (*path, str(inner.name)))


OPTIONS = [(path, flag, kind) for path, callback in commands(app) for flag, kind in _numbers(callback)]


def test_there_are_options_that_count() -> None:
    assert len(OPTIONS) > 100
    assert {"predict", "plan", "launch", "bench", "reason", "data", "jobs"} <= {path[0] for path, _, _ in OPTIONS}


@pytest.mark.parametrize(("path", "flag", "kind"), OPTIONS, ids=lambda v: v if isinstance(v, str) else None)
def test_every_option_that_counts_takes_the_one_grammar(path: tuple[str, ...], flag: str, kind: type) -> None:
    for text, value in WRITTEN.items():
        for given in ([flag, text], [f"{flag}={text}"]):
            written = plain_numbers(app, [*path, *given])[-1].removeprefix(f"{flag}=")
            assert float(written) == value
    for text in WRONG:
        if kind is int or text in ("2x", "2 kB", "two", "2K"):
            with pytest.raises(ConfigError, match=re.escape(flag)):
                plain_numbers(app, [*path, flag, text])
    own = [*path, "--", "python", flag, "2k"]
    assert plain_numbers(app, own) == own, "what follows -- is the user's own command"


GRAMMARS: dict[str, Callable[[str], int]] = {
    "units": units.whole,
    "tokens": lambda text: int(units.parse(text, units.COUNT)),
    "budget": lambda text: int(parse_budget(f"gpu-hours={text}").limits["gpu-hours"]),
    "nodes": lambda text: parse_counts(text, None, FakeMachine())[0],  # type: ignore[arg-type]
    "layout": lambda text: int(parse_layout(f"dp=1,gbs={text}").gbs),
    "shape": lambda text: from_shape(f"layers=2,hidden=64,heads=2,seq={text}").transformer.seq,
    "rl": lambda text: parse_rl(f"prompts={text},samples=2,prompt=4,response=4").num_prompts,
    "generate": lambda text: int(parse_generate(f"prompt={text},response=4").prompt.mean),
    "lengths": lambda text: int(parse_lengths(f"lognormal:mean={text},cv=0.5").mean),
    "lists": lambda text: parse_numbers(text, flag="--sizes")[0],
    "whole numbers": lambda text: whole_number(text, key="seq", what="what-if"),
    "study key": lambda text: read({"model": "m", "layout": "dp=1", "seq": text}, where="study.toml").seq,
}


class FakeMachine:
    gpus_per_node = 1


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_every_grammar_reads_a_count_alike(grammar: str) -> None:
    for text, value in WRITTEN.items():
        assert GRAMMARS[grammar](text) == value, text
    for text in ("2x", "2 kB", "two"):
        with pytest.raises((ConfigError, QuantityError)):
            GRAMMARS[grammar](text)


def test_a_thousand_says_that_it_is_no_power_of_two(cli: Cli) -> None:
    asked = ("predict", "--model", "gpt2-small", "--system", "leonardo", "--layout", "dp=4", "--seq")
    assert cli(*asked, "1k").stderr == "note: --seq 1k is 1,000; write 1Ki for 1,024\n"
    assert cli(*asked, "1Ki").stderr == ""
    assert cli(*asked, "1Ki").stdout == cli(*asked, "1024").stdout


@pytest.mark.parametrize("text", ["1e30", "9" * 25 + "k", "1e400", "1e17T"])
def test_a_count_that_no_array_holds_is_one_sentence(cli: Cli, text: str) -> None:
    for words in (
        ("predict", "--model", "gpt2-small", "--system", "leonardo", "--layout", "dp=4", "--seq", text),
        ("plan", "--model", "gpt2-small", "--system", "leonardo", "--nodes", "1", "--steps", text),
        ("predict", "--model", "gpt2-small", "--system", "leonardo", "--layout", f"dp=4,gbs={text}"),
    ):
        done = cli(*words)
        assert done.returncode == 2
        assert done.stderr.count("error: ") == 1
        assert "Traceback" not in done.stderr
