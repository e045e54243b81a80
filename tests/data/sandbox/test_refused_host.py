"""A host that permits no namespaces, as many containers and clusters: a filter on this process plays it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hostile_code import KINDS

import scalewright
from scalewright.records.types import ExitCode

NOBODY = 65534
HARDENED = (
    "import os, sys\n"
    "from scalewright.data.sandbox.seccomp_filter import filter_program\n"
    "from scalewright.data.sandbox.syscalls import PR_SET_NO_NEW_PRIVS, install_filter, prctl\n"
    "prctl(PR_SET_NO_NEW_PRIVS, 1)\n"
    "install_filter(filter_program(network=True))\n"
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])\n"
)
"""What follows runs where unshare, mount and their like are not permitted."""


def on_hardened_host(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HARDENED, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def interpreter_for(user: dict[str, Any]) -> str | None:
    """A Python that a user can run; root's own may be closed to others."""
    check = ["-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    for name in (sys.executable, "/usr/bin/python3"):
        try:
            if subprocess.run([name, *check], cwd="/", check=False, **user).returncode == 0:
                return name
        except OSError:
            continue
    return None


def test_a_user_without_rights_is_held_to_the_same() -> None:
    user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
    python = interpreter_for(user)
    if python is None:
        pytest.skip("no Python 3.11 that other users can run")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(scalewright.__file__).parent
        for name in ("__init__.py", "errors.py", "units.py", "data/__init__.py", "data/reasoning", "data/sandbox"):
            target = Path(folder, "scalewright", name)
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (source / name).is_dir() else shutil.copy)(source / name, target)  # type: ignore[operator]
        shutil.copytree(Path(__file__).parent, Path(folder, "attacks"))
        for path in (Path(folder), *Path(folder).rglob("*")):
            path.chmod(0o755)
        run = subprocess.run(
            [python, f"{folder}/attacks/soak.py", str(len(KINDS))], cwd="/", capture_output=True, text=True,
            env={"PYTHONPATH": folder, "PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}, check=False, **user,
        )  # fmt: skip
    assert run.returncode == 0, run.stdout[-1000:] + run.stderr[-1000:]
    assert f'"num_hostile": {len(KINDS)}' in run.stdout


def test_strict_is_refused_with_one_sentence_and_auto_uses_the_rest(tmp_path: Path) -> None:
    rows = [{"prompt": f"write add, {n}", "tests": "assert add(1, 2) == 3"} for n in range(4)]
    (tmp_path / "prompts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "tokenizer").mkdir()
    reward = "scalewright.data.reasoning.known_rewards:run_tests"
    strict = on_hardened_host(
        "-m", "scalewright", "reason", "evaluate", "--prompts", str(tmp_path / "prompts.jsonl"), "--tokenizer",
        str(tmp_path / "tokenizer"), "--reward", reward, "--sandbox", "strict", "--run-dir", str(tmp_path / "run"),
    )  # fmt: skip
    assert strict.returncode == ExitCode.ENVIRONMENT, strict.stderr
    sentence = strict.stderr.strip().splitlines()[-1]
    assert "--sandbox strict: this host does not permit limits on " in sentence
    assert "namespaces: unshare: Operation not permitted" in sentence
    assert "give --sandbox auto" in sentence
    program = (
        "from scalewright.data.reasoning.known_rewards import run_tests\n"
        "codes = ['def add(a, b): return a + b', 'def add(a, b): return 4', 'import os; os._exit(0)']\n"
        "values = run_tests(prompts=[''] * 3, completions=codes, tests=['assert add(1, 2) == 3'] * 3)\n"
        "print([one['reward'] for one in values])"
    )
    auto = on_hardened_host("-c", program)
    assert auto.stdout.strip() == "[1.0, 0.0, 0.0]", auto.stderr
