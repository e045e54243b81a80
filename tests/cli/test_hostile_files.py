"""Files that would hang, fill the memory or steer the terminal: every command refuses them at once, in one sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "observe"))
from run_maker import make_run

from scalewright.errors import ConfigError
from scalewright.study.expressions import evaluate

Cli = Callable[..., subprocess.CompletedProcess[str]]
Refused = Callable[..., str]
LIMIT_S = 60.0
"""For a busy machine; what hangs takes for ever."""
LAYOUT = ("--layout", "tp=4,dp=4,mbs=1,gbs=64", "--system", "leonardo")
COMMANDS = (
    ("plan-show", "{}"),
    ("validate", "{}"),
    ("study", "check", "{}"),
    ("predict", "--model", "{}", *LAYOUT),
    ("advise", "{}", "--site", "vega"),
    ("launch", "--dry-run", "--site", "vega", "{}"),
    ("jobs", "submit", "{}"),
    ("lint", "{}"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("kind", ["pipe", "zero"])
def test_a_pipe_and_a_device_are_refused_at_once(command: tuple[str, ...], kind: str, cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "named.json"
    if command[0] in ("study", "jobs"):
        path = path.with_suffix(".toml")
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    done = cli(*(word.format(path) for word in command), cwd=tmp_path, timeout=LIMIT_S)
    assert done.returncode in (2, 3), (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert "ordinary file" in done.stderr, done.stderr


def test_one_broken_profile_does_not_break_the_others(cli: Cli, refused: Refused, tmp_path: Path) -> None:
    folder = tmp_path / "scalewright" / "sites"
    folder.mkdir(parents=True)
    (folder / "broken.toml").write_text("a = [[[")
    (folder / "number.toml").write_text(f"a = {'9' * 5000}")
    os.mkfifo(folder / "pipe.toml")
    assert cli("site", "show", "lumi", cwd=tmp_path, timeout=LIMIT_S).returncode == 0
    listed = cli("site", "show", cwd=tmp_path, timeout=LIMIT_S)
    assert listed.returncode == 0
    assert "lumi" in listed.stdout
    assert "broken.toml" in listed.stdout + listed.stderr
    assert "broken.toml" in refused(cli("site", "show", "broken", cwd=tmp_path))


def test_a_pattern_that_backtracks_without_end_is_matched_quickly(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "scalewright" / "sites"
    folder.mkdir(parents=True)
    profile = Path(str(resources.files("scalewright.sites"))) / "profiles" / "lumi.toml"
    text = profile.read_text().replace("project_[0-9]{9}", "(a+)+$")
    (folder / "lumi.toml").write_text(text)
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\n#SBATCH --account={'a' * 60}-\n#SBATCH --partition=standard-g\nsrun hostname\n")
    done = cli("lint", "--site", "lumi", str(script), cwd=tmp_path, timeout=LIMIT_S)
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1)


@pytest.mark.parametrize(
    "text", ["((((9**64)**64)**64)**64)", "9 ** 9 ** 9 ** 9", "(0 - 8) ** 0.5", "2 ** 900 * 2 ** 900"]
)
def test_a_derived_value_cannot_grow_without_end(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot be computed"):
        evaluate(text, {}, where="derive.large")


def test_a_number_of_thirty_digits_is_refused(cli: Cli, refused: Refused) -> None:
    number = "9" * 30
    for words in (("--seq", number), (f"--seq={number}",)):
        assert "18 digits" in refused(cli("predict", "--model", "llama3-8b", *LAYOUT, *words))
    assert "above 1000000000" in refused(cli("predict", "--model", "llama3-8b", *LAYOUT, "--seq", "9" * 15))


def test_sizes_that_no_array_holds_are_refused(cli: Cli, refused: Refused, tmp_path: Path) -> None:
    config = (
        '{"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, '
        f'"num_key_value_heads": {2**64}, "intermediate_size": 14336, "vocab_size": 128256, '
        '"max_position_embeddings": 8192}'
    )
    path = tmp_path / "config.json"
    path.write_text(config)
    assert "kv_heads" in refused(cli("predict", "--model", str(path), *LAYOUT))


def test_a_report_prints_no_escape_of_a_run(cli: Cli, tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run")
    for path in (directory.exit_info, directory.config):
        text = (
            path.read_text().replace("finished", "\\u001b[2Jgone\\u009b31m").replace("gpt2-tiny", "a\\u001b]0;x\\u0007")
        )
        path.write_text(text)
    for command in (
        ("report", str(directory.path)),
        ("explain", str(directory.path)),
        ("postmortem", str(directory.path)),
    ):
        done = cli(*command, timeout=LIMIT_S)
        assert done.returncode in (0, 1), done.stderr
        assert "\x1b" not in done.stdout
        assert "\x9b" not in done.stdout
    assert "gone" in cli("report", str(directory.path)).stdout


def test_a_pipe_among_images_and_events_is_refused(cli: Cli, refused: Refused, tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run")
    path = directory.rank_events(1)
    path.unlink()
    os.mkfifo(path)
    assert "is a pipe" in refused(cli("report", str(directory.path), timeout=LIMIT_S))
    shutil.rmtree(tmp_path / "run")
