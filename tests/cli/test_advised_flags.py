"""Every option that a text of the program names is one that the command beside it takes."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.observe.evidence_maker import fired, made

from scalewright.observe.findings.rule import RUN_OPTIONS, run_option

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "scalewright"
FLAGS: dict[str, set[str]] = {
    command: {*flags.split(), "--help"}
    for command, flags in tomllib.loads((Path(__file__).parent / "command_flags.toml").read_text())["flags"].items()
}
OWN = set().union(*FLAGS.values())
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]")
CALL = re.compile(r"scalewright ((?:[a-z-]+ ){1,3})([^`\"']*)")
OTHERS = {
    "Slurm": "--cpu-bind --cpus-per-task --exclude --exclusive --gpu-bind --gpus-per-node --gpus-per-task --gres --mem "
    "--mem-per-cpu --nodes --ntasks-per-node --requeue --signal --time",
    "Docker": "--ipc --shm-size",
    "Megatron-LM": "--make-vocab-size-divisible-by --overlap-grad-reduce --overlap-param-gather",
    "Hugging Face's Trainer": "--bf16",
    "pdsh, torchrun and srun, which mark the lines of ranks": "--label --tag-output --tee",
    "vendors' tools": "--format --query-gpu",
}
"""Options of other programs that findings name."""


def strings(path: Path) -> Iterator[tuple[ast.AST, str]]:
    """Every text of a module but docstrings; a placeholder of an f-string is X."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    documented = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node, "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner | documented:
            yield node, node.value


def command_of(words: str) -> str | None:
    """The longest command that a text begins with."""
    parts = words.split()
    names = [" ".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((name for name in names if name in FLAGS), None)


def test_a_text_that_calls_the_program_names_only_options_of_that_command() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        for _, text in strings(path):
            for call in CALL.finditer(text):
                command = command_of(call[1])
                own = re.split(r" -- |; |, ", call[2])[0]
                flags = set(FLAG.findall(own)) if command else set()
                wrong += [
                    f"{path.relative_to(SOURCE)}: {command} {flag}" for flag in flags - FLAGS.get(command or "", OWN)
                ]
    assert not wrong


def test_the_pages_name_only_options_of_the_command_that_they_call() -> None:
    wrong = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        lines = path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
        for call in (call for line in lines for call in CALL.finditer(line)):
            command = command_of(call[1])
            own = re.split(r" -- |; |, | \| | && |#", call[2])[0]
            flags = set(FLAG.findall(own)) if command else set()
            wrong += [f"{path.name}: {command} {flag}" for flag in flags - FLAGS.get(command or "", OWN)]
    assert not wrong


@pytest.mark.parametrize("command", RUN_OPTIONS)
def test_a_run_is_advised_exactly_the_options_that_its_command_has(command: str) -> None:
    every = set().union(*RUN_OPTIONS.values())
    assert set(RUN_OPTIONS[command]) == every & FLAGS[command]


def test_every_command_that_trains_is_known() -> None:
    trains = {name for name, flags in FLAGS.items() if {"--steps", "--run-dir", "--checkpoint-every"} <= flags}
    assert trains == set(RUN_OPTIONS)


def test_findings_name_an_option_only_with_its_program() -> None:
    """In a call of the program, through `run_option`, or as one of another program."""
    others = {flag for flags in OTHERS.values() for flag in flags.split()}
    wrong = []
    for path in sorted((SOURCE / "observe" / "findings").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        asked = {
            id(argument)
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "run_option"
            for argument in ast.walk(node)
        }
        asked_values = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) in asked}
        for _, text in strings(path):
            if text in asked_values or path.name == "rule.py":
                continue
            named = set(FLAG.findall(CALL.sub("", text))) - {"--help"}
            wrong += [f"{path.name}: {flag} in {text[:60]!r}" for flag in named - others]
    assert not wrong


RUNS = [
    ({"kind": "language"}, "bench language"),
    ({"kind": "vision"}, "bench vision"),
    *[({"kind": "reason", "stage": stage}, f"reason {stage}") for stage in ("sft", "grpo", "distill", "generate")],
    ({}, ""),
    ({"kind": "engine"}, ""),
]


@pytest.mark.parametrize(("settings", "command"), RUNS)
def test_advice_about_a_run_holds_only_options_of_its_command(settings: dict[str, str], command: str) -> None:
    """Every finding that such evidence gives rise to, over settings that make the rules speak."""
    evidence = made(
        parts=lambda step, rank: {"checkpoint": 2.0 if step % 4 == 0 else 0.0},
        settings={**settings, "checkpoint_async": "false", "checkpoint_every": 4, "device_mttf_s": 1.8e8},
    )
    findings = fired(evidence)
    assert "checkpoint-stall" in findings
    assert "checkpoint-interval" in findings
    for one in findings.values():
        named = {flag for flag in FLAG.findall(CALL.sub("", one.seen.next_step)) if flag in OWN}
        assert named <= FLAGS.get(command, set()), one.seen.next_step


def test_an_option_is_asked_of_the_runs_own_command() -> None:
    grpo = made(settings={"kind": "reason", "stage": "grpo"})
    assert run_option(grpo, "--checkpoint", "async") == ""
    assert run_option(grpo, "--checkpoint-every", "auto") == "--checkpoint-every auto"
    assert run_option(made(settings={"kind": "language"}), "--checkpoint", "async") == "--checkpoint async"
    assert run_option(made(), "--checkpoint", "async") == ""
