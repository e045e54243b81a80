"""Whole runs from the command line: hours with an interval, parts of goodput, money, billing and published runs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scalewright.catalog.library import packaged_data

Here = Callable[..., subprocess.CompletedProcess[str]]

PLAN = ["plan", "--model", "llama2-7b", "--system", "generic-a100", "--gpus", "1024", "--global-batch", "1024"]
PREDICT = [
    "predict",
    "--model",
    "llama3-8b",
    "--system",
    "leonardo",
    "--layout",
    "tp=2,dp=32,mbs=1,gbs=256,zero=1,sp=1",
]
PRICE = """
schema = "scalewright.price/1"
id = "leonardo"
name = "Leonardo, our contract"
accelerator = "a100-sxm-64gb"
system = "leonardo"
per_accelerator = { value = "1.20 EUR/h", source = "contract" }
exchange_rate = { value = "1.10 USD/EUR", source = "contract" }
basis = "allocation"
valid_on = 2026-11-01

[sources.contract]
kind = "assumed"
text = "a contract of a test"
checked = 2026-11-16
"""


def test_a_plan_of_llama_2_holds_the_published_hours(here: Here) -> None:
    """Kind: measured. Meta reports 184,320 GPU-hours for the 7B on 2 T tokens."""
    done = here(*PLAN, "--tokens", "2T", "--json")
    run = json.loads(done.stdout)["whole_run"]
    low, high = run["num_gpu_hours_interval"]
    assert low < 184_320 < high
    assert run["num_gpu_hours"] == pytest.approx(184_320, rel=0.3)
    names = {part["name"] for part in run["time"]["parts"]}
    assert {"steps", "layout_gap", "evaluation", "ramp_up", "restarts", "lost_work", "unexplained"} <= names


def test_a_plan_says_where_the_hours_go_and_when_to_save(here: Here) -> None:
    flat = " ".join(here(*PLAN, "--tokens", "2T").stdout.split())
    for words in (
        "goodput",
        "as published runs lose on average: layouts slower than the best",
        "no known cause",
        "checkpoint every",
        "costs at most",
        "EUR",
        "USD",
    ):
        assert words in flat, words


def test_a_system_without_a_price_says_how_to_give_one(here: Here) -> None:
    done = here(*PREDICT, "--tokens", "10B")
    flat = " ".join(done.stdout.split())
    assert done.returncode == 0
    assert "no price of a100-sxm-64gb on leonardo: give one with scalewright catalog new price leonardo" in flat
    assert "core-hours" in flat


def test_a_price_in_euros_for_one_system_gives_both_currencies(here: Here, tmp_path: Path) -> None:
    folder = tmp_path / "scalewright" / "prices"
    folder.mkdir(parents=True)
    (folder / "leonardo.toml").write_text(PRICE)
    run = json.loads(here(*PREDICT, "--tokens", "10B", "--json").stdout)["whole_run"]
    assert run["cost_eur"] == pytest.approx(1.20 * run["num_gpu_hours"])
    assert run["cost_usd"] == pytest.approx(1.10 * run["cost_eur"])
    assert run["billed"]["num_units"] == pytest.approx(8 * run["num_gpu_hours"])
    elsewhere = ["predict", "--model", "llama3-8b", "--system", "lumi", "--layout", "dp=128,mbs=1,gbs=1024,zero=3"]
    assert "cost_eur" not in json.loads(here(*elsewhere, "--tokens", "10B", "--json").stdout)["whole_run"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('exchange_rate = { value = "1.10 USD/EUR", source = "contract" }\n', "", "add exchange_rate"),
        ("1.20 EUR/h", "1.20 GBP/h", "GBP/h"),
        ("1.10 USD/EUR", "1.10", "exchange rate"),
    ],
)
def test_a_wrong_price_names_the_key_and_the_rule(here: Here, tmp_path: Path, old: str, new: str, words: str) -> None:
    folder = tmp_path / "scalewright" / "prices"
    folder.mkdir(parents=True)
    (folder / "leonardo.toml").write_text(PRICE.replace(old, new))
    done = here("catalog", "prices", "leonardo")
    assert done.returncode == 2
    assert words in done.stderr
    assert "leonardo.toml" in done.stderr


@pytest.mark.parametrize("more", [["--generate", "prompt=512,response=64"], ["--tokens", "0"]])
def test_tokens_of_what_is_no_training_run_are_refused(here: Here, more: list[str]) -> None:
    done = here(*PREDICT, "--tokens", "10B", *more)
    assert done.returncode == 2
    assert "tokens" in done.stderr


def test_validate_campaign_prints_each_run_and_how_many_are_inside(here: Here, tmp_path: Path) -> None:
    text = (packaged_data() / "published" / "campaign_runs.toml").read_text()
    head, *runs = text.split("[[runs]]")
    sources = runs[-1][runs[-1].index("[sources.") :]
    chosen = [run for run in runs if 'id = "pythia-1b"' in run or 'id = "mpt-7b"' in run]
    file = tmp_path / "runs.toml"
    file.write_text(head + "".join(f"[[runs]]{run}" for run in chosen) + sources)
    done = here("validate", "--kind", "campaign", str(file))
    assert done.returncode == 0
    assert "pythia-1b" in done.stdout
    assert "2 of 2 runs of 2 families" in " ".join(done.stdout.split())


def test_validate_refuses_an_unknown_kind(here: Here) -> None:
    done = here("validate", "--kind", "weeks")
    assert done.returncode == 2
    assert "steps or campaign" in done.stderr
