"""Answers: for people in 80 columns, for machines as one document, and the exit code says yes or no."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import RememberedCli

from scalewright import __version__
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.catalog.types import KINDS

Cli = Callable[..., subprocess.CompletedProcess[str]]

CATALOG = Catalog((packaged_data(),))
FITS = ["predict", "--model", "gpt3-6.7b", "--system", "selene", "--layout", "tp=8,gbs=8"]
DOES_NOT_FIT = ["predict", "--model", "gpt3-175b", "--system", "selene", "--layout", "dp=8,gbs=8"]


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
        (["doctor"], "doctor"),
    ],
    ids=lambda v: " ".join(v)[:60] if isinstance(v, list) else v,
)
def test_json_is_one_document_that_starts_with_its_schema(cli: Cli, args: list[str], kind: str) -> None:
    result = cli(*args, "--json")
    assert result.stderr == ""
    assert next(iter(json.loads(result.stdout).items())) == ("schema", f"scalewright.{kind}/1")


def test_validation_is_one_document_and_fits_eighty_columns(remembered_cli: RememberedCli) -> None:
    result = remembered_cli("validate", "--json")
    assert result.stderr == ""
    assert next(iter(json.loads(result.stdout).items())) == ("schema", "scalewright.validation/1")
    result = remembered_cli("validate")
    assert result.returncode in (0, 1), result.stderr
    assert len(widest(result.stdout)) <= 80, widest(result.stdout)


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


STAGES = ([], ["--generate", "prompt=128,response=128"], ["--rl", "prompts=8,samples=8,prompt=64,response=64"])


@pytest.mark.parametrize("more", STAGES, ids=str)
def test_id_of_a_prediction_depends_on_the_transport(cli: Cli, more: list[str]) -> None:
    ids = set()
    for transport in ("rdma", "ipoib"):
        done = cli("predict", "--model", "llama3-8b", "--system", "generic-a100", "--layout", "dp=16,gbs=64,zero=1",
                   "--transport", transport, "--json", *more)  # fmt: skip
        ids.add(json.loads(done.stdout)["id"])
    assert len(ids) == 2


def test_closed_pipe_is_no_failure_and_a_full_disk_is_one() -> None:
    command = f"{sys.executable} -m scalewright catalog accelerators"
    shell = f"set -o pipefail; {command} | head -n 1 > /dev/null"
    assert subprocess.run(["bash", "-c", shell], check=False).returncode == 0
    full = subprocess.run(["bash", "-c", f"{command} > /dev/full"], capture_output=True, text=True, check=False)
    assert full.returncode == 3
    assert "Traceback" not in full.stderr


def test_money_and_carbon_are_left_out_where_nobody_published_them(cli: Cli) -> None:
    done = cli("predict", "--model", "gpt2", "--system", "lumi", "--layout", "dp=8,mbs=4", "--json")
    document = json.loads(done.stdout)
    assert "cost_usd" not in document
    assert document["carbon_kgco2e"] > 0
    assert any("no price" in warning for warning in document["warnings"])


TRAIN = ["predict", "--model", "llama3-8b", "--system", "perlmutter", "--layout", "dp=16,gbs=64,zero=3,recompute=full"]


def test_host_memory_data_and_stages_are_in_the_answer(cli: Cli) -> None:
    body = json.loads(cli(*TRAIN, "--mode", "offload", "--checkpoint", "async", "--json").stdout)
    assert body["input"]["mode"] == "offload"
    assert body["host_memory_bytes_per_node"] == pytest.approx(body["host_memory"]["total_bytes"])
    assert body["host_memory_bytes_per_node"] < body["host_memory_available_bytes_per_node"] == 256e9
    named = {part["name"]: part["total_bytes"] for part in body["host_memory"]["parts"]}
    assert {"processes", "loaders", "pinned", "offloaded_state", "checkpoint_copy"} == set(named)
    assert named["offloaded_state"] > named["checkpoint_copy"] > 0
    assert body["data_wait_s"] == 0.0
    assert len(body["memory_bytes_per_stage"]) == 1
    assert body["memory_bytes_per_stage"][0] == pytest.approx(body["memory_bytes"])
    text = cli(*TRAIN).stdout
    assert "host memory" in text
    assert "no wait" in text


def test_a_host_too_small_is_no_and_says_so(cli: Cli) -> None:
    big = ["predict", "--model", "llama3-70b", "--system", "perlmutter", "--partition", "gpu-80", "--seq", "1536"]
    result = cli(*big, "--layout", "dp=8,gbs=8,zero=3,recompute=full", "--mode", "offload")
    assert result.returncode == 1
    assert "host memory of a node is too small" in " ".join(result.stdout.split())


def test_modes_and_optimizers_change_the_answer(cli: Cli) -> None:
    flags_of = {
        "full": [], "lora": ["--mode", "lora"], "more": ["--mode", "lora", "--lora-rank", "256"],
        "sgd": ["--optimizer", "sgd"],
    }  # fmt: skip
    predictions = {name: json.loads(cli(*TRAIN, *flags, "--json").stdout) for name, flags in flags_of.items()}
    assert predictions["lora"]["step_time_s"] < predictions["more"]["step_time_s"] < predictions["full"]["step_time_s"]
    assert (
        predictions["lora"]["memory_bytes"] < predictions["sgd"]["memory_bytes"] < predictions["full"]["memory_bytes"]
    )
    assert predictions["lora"]["checkpoint_bytes"] == 41_943_040 * 14
    assert len({body["id"] for body in predictions.values()}) == 4


@pytest.mark.parametrize(
    "args",
    [FITS, ["plan", "--model", "gpt3-6.7b", "--system", "selene", "--nodes", "1", "--global-batch", "8"]],
    ids=["predict", "plan"],
)
def test_out_says_on_stderr_which_file_it_wrote(here: Cli, args: list[str]) -> None:
    done = here(*args, "--json", "--out", "answer.json")
    assert (done.returncode, done.stderr) == (0, "wrote answer.json\n")
    assert Path("answer.json").read_text() == done.stdout
