"""Bad input: exit code 2, one sentence that names the value and the next step, nothing on stdout, no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalewright.catalog.published import packaged_runs

Cli = Callable[..., subprocess.CompletedProcess[str]]
Refused = Callable[..., str]

Here = Callable[..., subprocess.CompletedProcess[str]]


FIRST_ROW = packaged_runs().read_text(encoding="utf-8").splitlines()[0]


def predict(model: str = "gpt3-6.7b", system: str = "selene", layout: str = "tp=8,gbs=8", *more: str) -> list[str]:
    return ["predict", "--model", model, "--system", system, "--layout", layout, *more]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (predict(model="gpt3-6.8b"), ["gpt3-6.8b", "gpt3-6.7b", "scalewright catalog models"]),
        (predict(model=""), ["model"]),
        (predict(model="resnet-50"), ["resnet-50", "data parallel"]),
        (predict(model="t5-base", layout="dp=8"), ["t5-base", "not covered"]),
        (predict(model="layers=24"), ["lacks hidden, heads"]),
        (predict(model="none/config.json"), ["none/config.json", "no such file"]),
        (predict(system="lummi"), ["lummi", "lumi"]),
        (predict("gpt3-6.7b", "lumi", "tp=8,gbs=8", "--partition", "lumi-x"), ["lumi-x", "lumi-g"]),
        (predict("gpt3-6.7b", "lumi", "tp=8,gbs=8", "--transport", "rdmaa"), ["rdmaa", "rdma"]),
        (predict("gpt3-6.7b", "selene", "tp=8,gbs=8", "--transport", "tcp-slingshot"), ["tcp-slingshot", "rdma"]),
        (predict("gpt3-6.7b", "selene", "tp=8,gbs=8", "--precision", "bf17"), ["bf17", "bf16"]),
        (predict("gpt3-6.7b", "selene", "tp=8,gbs=8", "--mode", "qlora"), ["qlora", "full, offload, lora"]),
        (predict("gpt3-6.7b", "selene", "tp=8,gbs=8", "--lora-rank", "8"), ["rank of 8", "mode full"]),
        (predict("gpt3-6.7b", "selene", "tp=8,gbs=8", "--mode", "lora", "--lora-rank", "0"), ["rank 0", "1 or more"]),
        (predict("gpt3-6.7b", "selene", "tp=8,gbs=8", "--optimizer", "lion"), ["lion", "adam, sgd"]),
        (predict("gpt3-6.7b", "selene", "tp=8,gbs=8", "--checkpoint", "never"), ["never", "sync or async"]),
        (predict("resnet-50", "selene", "dp=8,mbs=8", "--samples", "files"), ["need a storage"]),
        (predict("gpt3-6.7b", "selene", "tp=8,gbs=8", "--samples", "tar"), ["tar", "shards or files"]),
        (predict("gpt3-6.7b", "selene", "tp=8,gbs=8", "--storage", "nvme-gen44"), ["nvme-gen44", "nvme-gen4"]),
        (predict("resnet-50", "selene", "dp=8,mbs=8", "--optimizer", "adam"), ["option optimizer", "leave it out"]),
        (predict("gpt3-6.7b", "selene", "tp=8,gbs=8", "--precision", "fp8"), ["fp8", "a100"]),
        (predict("gpt3-6.7b", "selene", "tp=8,gbs=8", "--seq", "0"), ["0", "positive"]),
        (predict("gpt3-6.7b", "selene", "tp=8,gbs=8", "--seq", "many"), ["--seq"]),
        (predict(layout="tp=3,gbs=8"), ["tp=3", "32 attention heads"]),
        (predict(layout="dp=8,gbs=12"), ["gbs=12", "multiple"]),
        (predict(layout="dp=0"), ["dp=0", "1 or more"]),
        (predict(layout="dp=8,cp=3,gbs=8"), ["cp=3", "2048"]),
        (predict(layout="dp=8,recompute=some"), ["some", "operators"]),
        (predict("gpt3-6.7b", "selene", "tp=8,gbs=8", "--stack", "megatron-cor"), ["megatron-cor", "megatron-core"]),
        (predict(layout="dp=100000000000000000000000000"), ["dp"]),
        (["predict", "--model", "gpt2"], ["--system"]),
        (predict("gpt2", "selene", "dp=8", "--wat"), ["--wat"]),
        (["catalog", "h10"], ["h10", "h100"]),
        (["catalog", "accelerators", "lumi"], ["lumi", "accelerator"]),
        (["catalog", "compare", "h100-sxm"], ["two names"]),
        (["catalog", "compare", "h100-sxm", "lumi"], ["different kinds"]),
        (["validate", "none.jsonl"], ["none.jsonl", "no such file"]),
        (["validate", "."], ["folder"]),
        (["doctor", "--loud"], ["--loud"]),
        (["predikt"], ["predikt"]),
    ],
    ids=lambda v: " ".join(v)[:90] if isinstance(v, list) else None,
)
def test_bad_input_is_one_sentence(here: Here, refused: Refused, args: list[str], words: list[str]) -> None:
    message = refused(here(*args))
    for word in words:
        assert word in message


def changed_row(**changes: Any) -> str:
    row = json.loads(FIRST_ROW)
    for place, value in changes.items():
        section, _, key = place.partition("__")
        if key:
            row[section][key] = value
        else:
            row[section] = value
    return json.dumps(row)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ('{"id": "x", "sour', ["not valid JSON"]),
        ("[1, 2]", ["list"]),
        ('{"id": "x"}', ["missing"]),
        (changed_row(hardware__gpus=0), ["hardware.gpus", "greater than 0"]),
        (changed_row(layout__recompute="some"), ["layout.recompute", "some"]),
        (changed_row(measured__step_time_s=-1.0), ["measured.step_time_s", "-1"]),
        (changed_row(measured__step_time_s="fast"), ["measured.step_time_s", "fast"]),
        (changed_row(model__seq="long"), ["model.seq"]),
        (FIRST_ROW.replace('"step_time_s": 1.42', '"step_time_s": NaN'), ["NaN"]),
        (FIRST_ROW.replace('"step_time_s": 1.42', '"step_time_s": 1e999'), ["1e999", "not a finite number"]),
    ],
    ids=lambda v: "+".join(v) if isinstance(v, list) else "row",
)
def test_bad_row_names_file_line_and_key(
    here: Here, refused: Refused, tmp_path: Path, second: str, words: list[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{FIRST_ROW}\n{second}\n", encoding="utf-8")
    message = refused(here("validate", str(path)))
    for word in ("rows.jsonl, line 2", *words):
        assert word in message


@pytest.mark.parametrize(
    "config",
    [
        "{",
        "[]",
        '{"model_type": "novel"}',
        '{"model_type": "gpt2"}',
        '{"model_type": "gpt2", "n_embd": "a", "n_head": 2}',
    ],
)
def test_bad_model_file_is_one_sentence(here: Here, refused: Refused, tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    assert refused(here(*predict(model="config.json")))


def test_model_without_a_shape_names_file_and_rule(cli: Cli, refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "models" / "mine.toml"
    path.parent.mkdir()
    path.write_text(
        'schema = "scalewright.model/1"\nid = "mine"\nname = "Mine"\nfamily = "gpt"\n'
        '[sources.us]\nkind = "assumed"\ntext = "ours, for a test"\nchecked = 2026-01-01\n'
    )
    message = refused(cli(*predict("mine", "selene", "dp=8", "--catalog", str(tmp_path))))
    assert "mine.toml" in message
    assert "exactly one shape" in message


@pytest.mark.parametrize(
    ("command", "where"),
    [
        (predict(), "folder"),
        (predict(), "file/under.json"),
        (predict(), "/proc/none/x.json"),
        (["validate", "rows.jsonl"], "folder"),
    ],
    ids=lambda v: v if isinstance(v, str) else v[0],
)
def test_output_that_cannot_be_written_is_one_sentence(
    cli: Cli, tmp_path: Path, command: list[str], where: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "rows.jsonl").write_text(FIRST_ROW + "\n", encoding="utf-8")
    result = cli(*command, "--out", where, cwd=tmp_path)
    assert "Traceback" not in result.stderr
    assert result.returncode in (2, 3)
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert where.strip("/").split("/")[0] in result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder", "rows.jsonl"], "no temporary file stays"


def test_debug_shows_the_traceback_and_still_the_sentence(cli: Cli) -> None:
    result = cli("--debug", *predict(model="gpt3-6.8b"))
    assert result.returncode == 2
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: no model is called 'gpt3-6.8b'")


def test_no_arguments_print_the_help_as_it_is_laid_out(cli: Cli) -> None:
    result = cli()
    text = result.stdout + result.stderr
    assert result.returncode in (0, 2)
    assert "error:" not in text
    assert any(line.strip().startswith("predict ") for line in text.splitlines())


@pytest.mark.parametrize("columns", ["", "wide", "0"])
def test_strange_terminal_width_is_no_reason_to_fail(cli: Cli, columns: str) -> None:
    result = cli("catalog", env={"COLUMNS": columns})
    assert "Traceback" not in result.stderr
    assert result.returncode == 0


@pytest.mark.parametrize("args", [predict(), ["catalog", "h100-sxm"]], ids=lambda a: a[0])
def test_terminal_without_unicode_is_no_reason_to_fail(cli: Cli, args: list[str]) -> None:
    result = cli(*args, env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert "Traceback" not in result.stderr
    assert result.returncode in (0, 1)


def test_reader_that_leaves_early_is_no_error() -> None:
    result = subprocess.run(
        [
            "bash",
            "-c",
            '"$0" -m scalewright catalog models --json | head -c 20; exit "${PIPESTATUS[0]}"',
            sys.executable,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stderr == ""
    assert result.returncode == 0
    assert result.stdout.startswith('{\n  "schema":')


def test_empty_file_of_rows_is_answered_without_a_traceback(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    result = cli("validate", "rows.jsonl", cwd=tmp_path)
    assert "Traceback" not in result.stderr
    assert result.returncode in (0, 2)
