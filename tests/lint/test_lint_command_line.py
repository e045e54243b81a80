"""`scalewright lint` from outside: what it prints, what it writes, and the exit code."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scalewright.lint.engine import known_rules

Cli = Callable[..., object]

GOOD = """#!/bin/bash
#SBATCH --job-name=ok
#SBATCH --account=abc
#SBATCH --partition=gpu
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out
#SBATCH --no-requeue
set -euo pipefail
srun hostname
"""
READS_AS_A_USER = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
LATE = GOOD.replace("srun hostname", "module list\n#SBATCH --mem=1G\nsrun hostname")


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str, str], Path]:
    def write(text: str, name: str = "job.sbatch") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode("utf-8"))
        return path

    return write


def test_a_clean_script_answers_yes(cli, script) -> None:
    done = cli("lint", str(script(GOOD)))
    assert (done.returncode, done.stderr) == (0, "")
    assert "in 1 file" in done.stdout
    assert "error" not in done.stdout


def test_a_finding_shows_place_line_mark_reason_fix_and_page(cli, script) -> None:
    path = script(LATE)
    done = cli("lint", str(path), "--select", "directive-after-command")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{path}:13:9: error:")
    source = lines.index("   13 | #SBATCH --mem=1G")
    assert lines[source - 1].endswith("[directive-after-command]")
    assert lines[source + 1] == "      |         ^^^^^^^^"
    assert any(line.strip().startswith("why: ") for line in lines)
    assert any(line.strip().startswith("fix: ") for line in lines)
    assert "docs/lint/header/directive-after-command.md" in done.stdout


def test_a_heading_is_no_wider_than_the_terminal(cli, tmp_path) -> None:
    (tmp_path / "job.sbatch").write_text(LATE)
    done = cli("lint", "job.sbatch", "--site", "leonardo", cwd=tmp_path)
    headings = [
        line for line in done.stdout.splitlines() if line.startswith(("job.sbatch:", "    ")) and "|" not in line
    ]
    assert any(line.startswith("    ") and "[directive-after-command]" in line for line in headings)
    assert max(len(line) for line in headings) <= 80


def test_json_has_file_line_rule_severity_message_and_fix(cli, script) -> None:
    path = script(LATE)
    done = cli("lint", str(path), "--json", "--select", "directive-after-command")
    answer = json.loads(done.stdout)
    (finding,) = answer["findings"]
    assert (finding["file"], finding["line"], finding["rule"], finding["severity"]) == (
        str(path), 13, "directive-after-command", "error",
    )  # fmt: skip
    assert finding["fix"]["is_safe"] is False
    assert {"line", "column", "end_line", "end_column", "text"} == set(finding["fix"]["edits"][0])
    assert answer["schema"] == "scalewright.findings/1"


def test_sarif_has_rules_results_and_regions(cli, script) -> None:
    done = cli("lint", str(script(LATE)), "--format", "sarif")
    answer = json.loads(done.stdout)
    (run,) = answer["runs"]
    assert answer["version"] == "2.1.0"
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    result = next(r for r in run["results"] if r["ruleId"] == "directive-after-command")
    assert rules[result["ruleIndex"]] == "directive-after-command"
    region = result["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 13, "startColumn": 9, "endColumn": 17}
    assert result["level"] == "error"
    assert result["fixes"][0]["artifactChanges"][0]["replacements"]


def test_github_annotations_are_one_line_each_and_escaped(cli, script) -> None:
    path = script(LATE, "odd,name:1.sh")
    done = cli("lint", str(path), "--format", "github")
    errors = [line for line in done.stdout.splitlines() if line.startswith("::error ")]
    assert len(errors) == 1
    assert "odd%2Cname%3A1.sh" in errors[0]
    assert ",line=13,col=9," in errors[0]
    assert all(line.startswith(("::error ", "::warning ", "::notice ")) for line in done.stdout.splitlines())


@pytest.mark.parametrize(("level", "code"), [("error", 1), ("warning", 1), ("info", 1), ("never", 0)])
def test_fail_on_says_what_counts(cli, script, level: str, code: int) -> None:
    assert cli("lint", str(script(LATE)), "--fail-on", level).returncode == code


def test_info_alone_does_not_fail(cli, script) -> None:
    path = script(GOOD.replace("#SBATCH --time=01:00:00\n", ""))
    assert cli("lint", str(path)).returncode == 0
    assert cli("lint", str(path), "--fail-on", "info").returncode == 1


def test_standard_input_is_a_script_too(cli) -> None:
    done = cli("lint", "-", "--json", input=LATE)
    assert {f["file"] for f in json.loads(done.stdout)["findings"]} == {"standard input"}
    assert done.returncode == 1
    refused = cli("lint", "-", "--fix", input=LATE)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


BAD = {
    "binary": (b"\x7fELF\x00\x01\x02", "binary"),
    "empty": (b"", "empty"),
    "blank": (b"\n  \n", "empty"),
    "latin": ("#!/bin/bash\n# größer\n".encode("latin-1"), "UTF-8"),
    "long": (b"#!/bin/bash\n" + b"x" * 10_000_000 + b"\n", "4 MiB"),
    "longline": (b"#!/bin/bash\necho " + b"x" * 100_000 + b"\n", "100,005 characters"),
    "pipes": (b"#!/bin/bash\n" + b"a|" * 5000 + b"a\n", "pipes"),
    "quote": (b'#!/bin/bash\n#SBATCH -N1\necho "never closed\nsrun x\n', "line 3"),
    "heredoc": (b"#!/bin/bash\n#SBATCH -N1\ncat <<EOF\nnever closed\n", "heredoc"),
    "bracket": (b"#!/bin/bash\nif true; then\n  echo\n", "line"),
    "tcsh": (b"#!/bin/tcsh\n#SBATCH -N1\nsetenv A 1\n", "tcsh"),
    "fish": (b"#!/usr/bin/env fish\nset A 1\n", "fish"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_file_that_is_no_script_is_one_sentence_and_the_others_are_still_linted(
    cli, script, tmp_path: Path, kind: str
) -> None:
    content, reason = BAD[kind]
    bad = tmp_path / "bad.sh"
    bad.write_bytes(content)
    done = cli("lint", str(bad), str(script(LATE)))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {bad}: ")
    assert done.stderr.count("\n") == 1
    assert reason in done.stderr
    assert "directive-after-command" in done.stdout


def test_a_folder_and_a_missing_file_are_bad_input_too(cli, script, tmp_path: Path) -> None:
    done = cli("lint", str(tmp_path), str(tmp_path / "nothing.sh"), str(script(LATE)), "--json")
    assert done.returncode == 2
    answer = json.loads(done.stdout)
    assert [row["file"] for row in answer["unreadable"]] == [str(tmp_path), str(tmp_path / "nothing.sh")]
    assert answer["findings"]


def test_a_file_without_permission_is_bad_input(cli, script) -> None:
    path = script(GOOD)
    path.chmod(0)
    done = cli("lint", str(path), prefix=READS_AS_A_USER if os.geteuid() == 0 else ())
    assert done.returncode == 2
    assert "Permission denied" in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        'cat <<"E"\n\'"(\nE\n',
        'x=${a:-\'b\'}\n[[ $x =~ ^(a|b)$ ]] && echo "$(echo "x")"\n',
        "case $1 in (a) echo;; esac\nselect x in a b; do break; done\n",
        "coproc cat\nexec 3<>/dev/null\necho {1..3} $'a\\'b' ;\n",
    ],
)
def test_odd_but_valid_shell_is_read(cli, script, text: str) -> None:
    assert cli("lint", str(script(GOOD + text)), "--fail-on", "never").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "no script"),
        (["--unsafe-fixes", "x.sh"], "--fix"),
        (["--explain", "no-tiem"], "no-time"),
        (["--select", "nonsense", "x.sh"], "nonsense"),
        (["--site", "leonrdo", "x.sh"], "leonardo"),
        (["--slurm", "old", "x.sh"], "23.11"),
        (["--sbatch", "--nodse=1", "x.sh"], "--nodes"),
        (["--model", "gpt3-175b", "x.sh"], "--site"),
        (["--pilot", "/nowhere", "x.sh"], "run directory"),
        (["--config", "/nowhere.toml", "x.sh"], "no such file"),
    ],
)
def test_flags_that_make_no_sense_are_refused_in_one_sentence(cli, arguments: list[str], reason: str) -> None:
    done = cli("lint", *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert reason in done.stderr


def test_the_command_line_of_sbatch_fills_in_what_the_header_lacks(cli, script) -> None:
    path = script(GOOD.replace("#SBATCH --time=01:00:00\n", ""))
    bare = cli("lint", str(path), "--select", "no-time", "--json")
    assert len(json.loads(bare.stdout)["findings"]) == 1
    given = cli("lint", str(path), "--select", "no-time", "--json", "--sbatch", "--time=10")
    assert not json.loads(given.stdout)["findings"]
    linted = cli("lint", str(path), "--select", "no-time", "--json", env={"SBATCH_TIMELIMIT": "10"})
    assert not json.loads(linted.stdout)["findings"]


def test_every_rule_is_listed_and_explained(cli) -> None:
    listed = json.loads(cli("lint", "--list", "--json").stdout)["rules"]
    assert {rule["id"] for rule in listed} == set(known_rules())
    assert len(listed) >= 40
    explanation = cli("lint", "--explain", "no-time").stdout
    for part in ("Before", "After", "Source:", "Applies to:", "# scalewright: ignore=no-time"):
        assert part in explanation


def test_settings_come_from_the_nearest_file_and_flags_win(cli, script, tmp_path: Path) -> None:
    text = LATE.replace("#SBATCH --account=abc\n", "")
    path = script(text, "a.sh")
    folder = tmp_path / "deep"
    folder.mkdir()
    settings = tmp_path / "scalewright-lint.toml"
    settings.write_text(
        'schema = "scalewright.lint/1"\nselect = ["directive-after-command", "no-account"]\nfail_on = "error"\n'
        '[severity]\nno-account = "error"\ndirective-after-command = "info"\n'
        '[per_file_ignores]\n"b*.sh" = ["no-account"]\n',
        encoding="utf-8",
    )
    done = cli("lint", "../a.sh", "--json", cwd=folder)
    assert {(f["rule"], f["severity"]) for f in json.loads(done.stdout)["findings"]} == {
        ("directive-after-command", "info"), ("no-account", "error"),
    }  # fmt: skip
    assert done.returncode == 1
    other = cli("lint", str(script(text, "b1.sh")), "--json", cwd=folder)
    assert {f["rule"] for f in json.loads(other.stdout)["findings"]} == {"directive-after-command"}
    assert other.returncode == 0
    assert cli("lint", str(path), "--ignore", "no-account", cwd=folder).returncode == 0
    settings.write_text('schema = "scalewright.lint/1"\nselct = []\n', encoding="utf-8")
    refused = cli("lint", str(path), cwd=folder)
    assert refused.returncode == 2
    assert "did you mean select" in refused.stderr


def test_a_suppression_needs_a_reason_and_a_use(cli, script) -> None:
    def rules(text: str) -> set[str]:
        return {f["rule"] for f in json.loads(cli("lint", "-", "--json", input=text).stdout)["findings"]}

    line = "#SBATCH --mem=1G"
    assert "directive-after-command" not in rules(
        LATE.replace(line, f"{line}  # scalewright: ignore=directive-after-command shown on purpose")
    )
    assert "directive-after-command" not in rules(
        LATE.replace(line, f"# scalewright: ignore=directive-after-command shown on purpose\n{line}")
    )
    assert "directive-after-command" not in rules(
        LATE.replace("#SBATCH -", "# scalewright: ignore=directive-after-command on purpose\n#SBATCH -", 1)
    )
    assert {"directive-after-command", "suppression-without-reason"} <= rules(
        LATE.replace(line, f"{line}  # scalewright: ignore=directive-after-command")
    )
    assert "suppression-unused" in rules(GOOD + "hostname # scalewright: ignore=fixed-port it is ours\n")
    assert "suppression-unused" in rules(GOOD + "hostname # scalewright: ignore=no-such-rule it is ours\n")
    assert "suppression-without-reason" in rules(GOOD + "hostname # scalewright: ignore\n")
    assert not {"suppression-unused", "suppression-without-reason"} & rules(
        GOOD + "cat <<E\n# scalewright: ignore=fixed-port\nE\n"
    )


def test_fix_rewrites_what_is_safe_and_keeps_the_rest(cli, script) -> None:
    text = GOOD.replace("srun hostname", "srun \\ \n  hostname  # keep me").replace("\n", "\r\n")
    path = script(text)
    path.chmod(0o750)
    link = path.with_name("link.sh")
    link.symlink_to(path.name)
    shown = cli("lint", str(link), "--diff", "--select", "dos-line-ends,backslash-space")
    assert shown.returncode == 1
    assert path.read_bytes() == text.encode()
    assert shown.stdout.startswith("--- a/")
    cli("lint", str(link), "--fix", "--select", "backslash-space,dos-line-ends")
    fixed = path.read_bytes()
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert b"# keep me" in fixed
    assert fixed != text.encode()
    cli("lint", str(link), "--fix", "--select", "backslash-space,dos-line-ends")
    assert path.read_bytes() == fixed


def test_unsafe_rewrites_are_only_made_when_asked_for(cli, script) -> None:
    path = script(LATE)
    cli("lint", str(path), "--fix", "--select", "directive-after-command")
    assert path.read_text() == LATE
    done = cli("lint", str(path), "--fix", "--unsafe-fixes", "--select", "directive-after-command")
    assert done.returncode == 0
    text = path.read_text()
    assert text.index("#SBATCH --mem=1G") < text.index("set -euo")
    assert sorted(text.splitlines()) == sorted(LATE.splitlines())


def test_a_script_cannot_steer_the_terminal(cli, script) -> None:
    path = script(LATE.replace("--mem=1G", "--mem=1G \x1b[31m"))
    assert "\x1b" not in cli("lint", str(path)).stdout


def test_without_the_extra_the_answer_names_it(cli, script, tmp_path: Path) -> None:
    hidden = tmp_path / "site"
    hidden.mkdir()
    (hidden / "tree_sitter.py").write_text("raise ImportError('no', name='tree_sitter')\n", encoding="utf-8")
    done = cli("lint", str(script(GOOD)), env={"PYTHONPATH": str(hidden)})
    assert done.returncode == 3
    assert "scalewright[lint]" in done.stderr
    assert cli("lint", "--list", env={"PYTHONPATH": str(hidden)}).returncode == 0


def test_the_hook_definition_runs_the_command_on_job_scripts() -> None:
    import yaml

    root = Path(__file__).resolve().parents[2]
    (hook,) = yaml.safe_load((root / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert hook["entry"] == "scalewright lint"
    assert hook["language"] == "python"
    assert hook["additional_dependencies"] == [".[lint]"]
    assert sys.version_info >= (3, 11)


def test_one_launcher_a_node_gets_the_cpus_of_the_tasks_that_it_replaces(cli, script) -> None:
    four_tasks = GOOD.replace("--ntasks=1", "--ntasks-per-node=4\n#SBATCH --gpus-per-node=4")
    path = script(four_tasks.replace("srun hostname", "srun torchrun --nproc_per_node=4 train.py"))
    cli("lint", str(path), "--fix", "--unsafe-fixes")
    assert "srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 --cpus-per-task=32 " in path.read_text()
