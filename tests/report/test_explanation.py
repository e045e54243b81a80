"""`predict --explain`: from the total to the terms, in order, in 80 columns."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]
DENSE = ["--model", "gpt3-175b", "--system", "selene"]
DENSE += ["--layout", "tp=8,pp=8,vpp=1,dp=8,mbs=1,gbs=512,recompute=full"]
EXPERTS = ["--model", "deepseek-v3", "--system", "generic-h100"]
EXPERTS += ["--layout", "pp=16,ep=64,dp=128,gbs=4096,mbs=1,zero=1,recompute=selective"]
SMALL = ["--model", "gpt2-tiny", "--system", "laptop", "--layout", "mbs=1"]
HEADINGS = [
    "step time",
    "where the step goes",
    "where the memory goes",
    "what limits it",
    "one change at a time",
    "equations",
]


@pytest.mark.parametrize(
    ("flag", "last"), [("--explain", "all equations with their"), ("--explain-all", "inputs")], ids=["main", "all"]
)
@pytest.mark.parametrize("args", [DENSE, EXPERTS, SMALL], ids=lambda a: a[1])
def test_parts_come_in_order_in_eighty_columns(cli: Cli, args: list[str], flag: str, last: str) -> None:
    result = cli("predict", *args, flag)
    lines = result.stdout.splitlines()
    headings = [*HEADINGS, last]
    places = [next(i for i, line in enumerate(lines) if line.startswith(heading)) for heading in headings]
    assert places == sorted(places)
    assert max(map(len, lines)) <= 80
    assert result.stderr == ""


def test_what_rounding_leaves_of_a_term_is_not_listed(cli: Cli) -> None:
    """BLOOM's layout on Jean Zay: its host hides behind the device but for a hundred-billionth of the step."""
    layout = "tp=4,pp=12,dp=8,mbs=2,gbs=2048,zero=1,recompute=full"
    result = cli("predict", "--model", "bloom-176b", "--system", "jean-zay", "--layout", layout)
    terms = section(result.stdout, "where the step goes", "where the memory goes")
    assert "pipeline bubble" in terms
    assert "0.0000" not in terms


def section(text: str, start: str, end: str) -> str:
    return text.partition(f"\n{start}")[2].partition(f"\n{end}")[0]


def test_five_limits_and_the_rest_with_reasons_and_a_table_of_changes(cli: Cli) -> None:
    text = cli("predict", *DENSE, "--explain").stdout
    limits = section(text, "what limits it", "under which roof")
    named = [line for line in limits.splitlines()[2:] if line and not line.startswith(" ")]
    assert len(named) == 6
    assert named[-1].startswith("all others")  # so that the shares add up to the step
    assert sum(float(share) for line in named for share in re.findall(r"([\d.]+)%", line)[:1]) == pytest.approx(
        100.0, abs=0.5
    )
    assert named[0].startswith("matmul")
    changes = section(text, "one change at a time", "how it is exchanged")
    rows = [line.split() for line in changes.splitlines()[2:] if line]
    assert len(rows) >= 10
    assert {row[-1] for row in rows} == {"yes", "no"}
    saved = [float(next(word for word in row if word.endswith("%")).rstrip("%")) for row in rows]
    assert saved == sorted(saved, reverse=True)
    assert saved[0] > 0 > saved[-1]


def test_every_transfer_says_its_algorithm_and_how_far_it_reaches(cli: Cli) -> None:
    """Selene: gradients on rails of eight nodes, stages across 64; Frontier: 1,024 nodes among others."""
    table = section(cli("predict", *DENSE, "--explain").stdout, "how it is exchanged", "equations")
    rows = [line.split() for line in table.splitlines()[2:] if line]
    assert [row[-2:] for row in rows] == [["ring", "node"], ["messages", "machine"], ["ring", "rail"]]
    frontier = ["--model", "gpt3-175b", "--system", "frontier", "--layout", "tp=8,pp=8,dp=128,gbs=2048,recompute=full"]
    text = cli("predict", *frontier, "--explain").stdout
    last = section(text, "how it is exchanged", "equations").strip().splitlines()[-1].split()
    assert last[:4] == ["data", "parallel", "ring", "machine"]
    assert float(last[4].removesuffix("x")) > 1.5
    assert "shared network" in " ".join(text.split())


def test_equation_keeps_its_lines(cli: Cli) -> None:
    lines = cli("predict", *DENSE, "--explain").stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("compute.gemm_time_s"))
    assert lines[start + 1].startswith("  Equation  t = max(tiled arithmetic")
    assert lines[start + 2].startswith(" " * 12), "a long line goes on under itself"


def test_explain_shows_the_terms_that_matter_and_explain_all_the_rest(cli: Cli) -> None:
    main, whole = (cli("predict", *DENSE, flag).stdout for flag in ("--explain", "--explain-all"))
    shown, every = (set(re.findall(r"^[a-z_]+\.[a-z_]+  ", text, re.MULTILINE)) for text in (main, whole))
    assert "pipeline.bubble_time_s  " in shown
    assert shown < every
    assert "  Checked" not in main
    assert "  Checked" in whole
    assert len(main.splitlines()) < len(whole.splitlines()) / 2
    assert main.rstrip().endswith("--explain-all")


def test_without_explain_there_is_none_of_it(cli: Cli) -> None:
    text = cli("predict", *DENSE).stdout
    assert "what limits it" not in text
    assert "equations" not in text


def test_brackets_in_names_are_printed_as_they_are(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "my[bold]model"
    folder.mkdir()
    config = {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
    }
    (folder / "config.json").write_text(json.dumps(config))
    result = cli("predict", "--model", str(folder), "--system", "selene", "--layout", "dp=8", "--explain")
    assert result.returncode == 0, result.stderr
    assert "hf:my[bold]model" in result.stdout
