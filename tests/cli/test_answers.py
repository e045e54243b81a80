"""Answers: for people in 80 columns, for machines as one document, and the exit code says yes or no."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scalewright import __version__
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.catalog.types import KINDS
from scalewright.records.documents import read_document

Cli = Callable[..., subprocess.CompletedProcess[str]]

CATALOG = Catalog((packaged_data(),))
FITS = ["predict", "--model", "gpt3-6.7b", "--system", "selene", "--layout", "tp=8,gbs=8"]
DOES_NOT_FIT = ["predict", "--model", "gpt3-175b", "--system", "selene", "--layout", "dp=8,gbs=8"]
FLAGS = {
    (): ["--debug", "--help", "--version"],
    ("catalog",): ["--catalog", "--explain", "--help", "--json"],
    ("doctor",): ["--help", "--json"],
    ("predict",): [
        "--catalog",
        "--explain",
        "--generate",
        "--help",
        "--json",
        "--layout",
        "--model",
        "--out",
        "--partition",
        "--plot",
        "--precision",
        "--rl",
        "--seq",
        "--stack",
        "--system",
        "--transport",
    ],
    ("validate",): ["--catalog", "--help", "--json", "--out", "--record"],
}


@pytest.mark.parametrize("command", FLAGS, ids=lambda c: " ".join(c) or "scalewright")
def test_flags_are_these_and_growth_is_a_decision(cli: Cli, command: tuple[str, ...]) -> None:
    result = cli(*command, "--help")
    assert result.returncode == 0
    assert sorted(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", result.stdout, re.MULTILINE)) == FLAGS[command]


def test_commands_are_these(cli: Cli) -> None:
    listed = cli("--help").stdout.partition("Commands:")[2]
    assert re.findall(r"^  ([a-z-]+) ", listed, re.MULTILINE) == ["catalog", "doctor", "predict", "validate"]


def test_version(cli: Cli) -> None:
    result = cli("--version")
    assert (result.returncode, result.stdout) == (0, f"scalewright {__version__}\n")


@pytest.mark.parametrize("args", [["--help"], ["--version"]], ids=" ".join)
def test_help_and_version_import_nothing_heavy(cli: Cli, args: list[str]) -> None:
    code = (
        "import sys, runpy\n"
        "sys.argv[1:] = sys.argv[1:]\n"
        "try:\n    runpy.run_module('scalewright', run_name='__main__')\n"
        "except SystemExit:\n    pass\n"
        "print('heavy:', sorted({'numpy', 'torch', 'matplotlib', 'pydantic', 'pandas', 'jinja2'} & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "heavy: []"


def test_exit_code_says_whether_it_fits(cli: Cli) -> None:
    fits, does_not = cli(*FITS), cli(*DOES_NOT_FIT)
    assert (fits.returncode, does_not.returncode) == (0, 1), fits.stderr + does_not.stderr
    assert "does not fit" in " ".join(does_not.stdout.split())
    assert "does not fit" not in " ".join(fits.stdout.split())
    assert does_not.stderr == ""


@pytest.mark.parametrize(
    ("args", "kind"),
    [
        (["catalog"], "catalog"),
        (["catalog", "systems"], "catalog"),
        (["catalog", "compare", "h100-sxm", "a100-sxm-80gb"], "catalog"),
        (FITS, "prediction"),
        (["validate"], "validation"),
        (["doctor"], "doctor"),
    ],
    ids=lambda v: " ".join(v)[:60] if isinstance(v, list) else v,
)
def test_json_is_one_document_that_starts_with_its_schema(cli: Cli, args: list[str], kind: str) -> None:
    result = cli(*args, "--json")
    assert result.stderr == ""
    assert next(iter(json.loads(result.stdout).items())) == ("schema", f"scalewright.{kind}/1")


def widest(text: str) -> str:
    return max(text.splitlines(), key=len)


@pytest.mark.parametrize(
    "args",
    [
        ["catalog"],
        ["catalog", "--explain"],
        ["catalog", "compare", "h100-sxm-96gb-500w", "a100-sxm-80gb"],
        ["catalog", "compare", "lumi", "leonardo"],
        FITS,
        [*FITS, "--explain"],
        ["predict", "--model", "gpt2", "--system", "laptop", "--layout", "mbs=1", "--explain"],
        ["validate"],
        ["doctor"],
        ["predict", "--help"],
    ],
    ids=lambda a: " ".join(a)[:70],
)
def test_answer_fits_eighty_columns(cli: Cli, args: list[str]) -> None:
    result = cli(*args)
    assert result.returncode in (0, 1), result.stderr
    assert len(widest(result.stdout)) <= 80, widest(result.stdout)


@pytest.mark.parametrize("kind", KINDS)
def test_listing_shows_every_id_whole_in_eighty_columns(cli: Cli, kind: str) -> None:
    text = cli("catalog", kind).stdout
    assert set(CATALOG.ids(kind)) <= {line.split()[0] for line in text.splitlines() if line.strip()}
    assert len(widest(text)) <= 80, widest(text)


LARGE_KINDS = ("accelerators", "systems", "models")


@pytest.mark.parametrize("more", [[], ["--explain"]], ids=["plain", "explain"])
@pytest.mark.parametrize("kind", LARGE_KINDS)
def test_entries_fit_eighty_columns(cli: Cli, kind: str, more: list[str]) -> None:
    result = cli("catalog", kind, *CATALOG.ids(kind), *more)
    assert result.returncode == 0, result.stderr
    assert len(widest(result.stdout)) <= 80, widest(result.stdout)


@pytest.mark.parametrize("kind", ["links", "fabrics", "storage", "constants", "stacks"])
def test_entries_of_the_small_kinds_fit_eighty_columns(cli: Cli, kind: str) -> None:
    result = cli("catalog", kind, *CATALOG.ids(kind), "--explain")
    assert result.returncode == 0, result.stderr
    assert len(widest(result.stdout)) <= 80, widest(result.stdout)


@pytest.mark.parametrize("args", [FITS, ["catalog", "accelerators"]], ids=lambda a: a[0])
def test_output_to_a_file_is_plain_text(cli: Cli, args: list[str]) -> None:
    assert "\x1b" not in cli(*args).stdout


def test_out_writes_the_document_that_json_prints(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "p.json"
    result = cli(*FITS, "--json", "--out", str(path))
    assert read_document(path, "prediction") == json.loads(result.stdout)


def test_prediction_parts_add_up_to_its_totals(cli: Cli) -> None:
    doc = json.loads(cli(*FITS, "--json").stdout)
    assert (
        doc["time"]["total_s"] == doc["step_time_s"] == pytest.approx(sum(p["total_s"] for p in doc["time"]["parts"]))
    )
    assert doc["memory"]["total_bytes"] == doc["memory_bytes"]
    assert doc["memory_bytes"] == pytest.approx(sum(p["total_bytes"] for p in doc["memory"]["parts"]))
    assert doc["step_time_interval_s"][0] < doc["step_time_s"] < doc["step_time_interval_s"][1]
    tokens = 8 * 2048
    assert doc["tokens_per_s_per_gpu"] == pytest.approx(tokens / doc["step_time_s"] / 8)
    assert doc["mfu_frac"] == pytest.approx(doc["model_flop"] / (doc["step_time_s"] * 8 * 312e12))


def test_prediction_id_is_the_same_for_the_same_question(cli: Cli) -> None:
    once, again = json.loads(cli(*FITS, "--json").stdout), json.loads(cli(*FITS, "--json").stdout)
    other = json.loads(cli(*FITS, "--seq", "1024", "--json").stdout)
    assert once == again
    assert once["id"] != other["id"]


def test_explain_prints_equations_with_their_sources(cli: Cli) -> None:
    text = cli(*FITS, "--explain").stdout
    assert "williams2009" in text
    assert "max(tiled arithmetic" in " ".join(text.split())


def test_explain_of_an_entry_prints_its_sources(cli: Cli) -> None:
    text = cli("catalog", "h100-sxm", "--explain").stdout
    assert "whitepaper" in text
    assert "https://" in text


def test_comparison_gives_ratios(cli: Cli) -> None:
    doc = json.loads(cli("catalog", "compare", "h100-sxm", "a100-sxm-80gb", "--json").stdout)
    found = [v for k, v in doc["ratios"].items() if "peak.bf16" in k]
    assert found == [pytest.approx(989.4 / 312, rel=0.01)] or found == [pytest.approx(312 / 989.4, rel=0.01)]


def test_model_from_a_config_folder_is_predicted(cli: Cli, tmp_path: Path) -> None:
    config = {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    doc = json.loads(
        cli("predict", "--model", str(tmp_path), "--system", "selene", "--layout", "dp=8", "--json").stdout
    )
    named = json.loads(cli("predict", "--model", "gpt2", "--system", "selene", "--layout", "dp=8", "--json").stdout)
    assert doc["step_time_s"] == pytest.approx(named["step_time_s"])
    assert doc["memory_bytes"] == pytest.approx(named["memory_bytes"])
