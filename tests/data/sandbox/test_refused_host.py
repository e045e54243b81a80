"""A host that permits no namespaces, as many containers and clusters: a filter on this process plays it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from scalewright.records.types import ExitCode

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
