"""`transformers serve`, an OpenAI-compatible server from pip: `bench generate --url` measures its answers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import Cli

pytestmark = pytest.mark.engines
READY_S = 180.0
MAKE_TOKENIZER = """
import json, pathlib, sys
sys.path.insert(0, sys.argv[2])
from engine_setup import small_tokenizer
model = json.loads((pathlib.Path(sys.argv[1]) / "config.json").read_text())
small_tokenizer({"tokenizer": "", "model": model}).save_pretrained(sys.argv[1])
"""
PROGRAMS = Path(__file__).resolve().parents[2] / "src/scalewright/engines/programs"


@pytest.fixture
def server(engines_python: str, weights: Path, tmp_path: Path) -> Iterator[str]:
    subprocess.run([engines_python, "-c", MAKE_TOKENIZER, str(weights), str(PROGRAMS)], check=True, capture_output=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = Path(engines_python).with_name("transformers")
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [program, "serve", "--device", "cpu", "--host", "127.0.0.1", "--port", str(port), str(weights)],
            stdout=log, stderr=log, env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(url, process)
        yield url
    finally:
        process.kill()
        process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    ends_s = time.monotonic() + READY_S
    while time.monotonic() < ends_s:
        assert process.poll() is None
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.5)
    pytest.fail("the server did not become ready")


def test_the_answers_of_a_server_are_measured(server: str, weights: Path, cli: Cli, tmp_path: Path) -> None:
    done = cli(
        "bench", "generate", "--url", server, "--server-model", str(weights), "--prompt-lengths", "8",
        "--answer-lengths", "8", "--num", "3", "--run-dir", str(tmp_path / "run"), "--json", timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)["rows"][0]
    assert row["num_answers"] == 3
    assert row["tokens_per_s"] > 0
