"""The tutorial notebook runs, shows what is stored in it, and its page is made from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_notebook_and_its_page_show_what_a_run_shows() -> None:
    command = [sys.executable, str(ROOT / "tools" / "notebook.py"), "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]
