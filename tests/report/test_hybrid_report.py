"""The report of a run with rollouts: terminal, JSON, plot and page say the same, and refuse what has none."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.conftest import Cli
from tests.hybrid_cases import write_async_run
from tests.pipeline_cases import record, write_finished

from scalewright.records.documents import document, write_document
from scalewright.records.run_directory import ExitInfo, RunDirectory

HOSTILE = "</title><script>alert(1)</script>"


def run_in(path: Path, **others: object) -> RunDirectory:
    directory = write_async_run(path, **others)  # type: ignore[arg-type]
    write_document(directory.config, document("reason-run", {"stage": "grpo"}))
    return directory


def test_tables_fit_a_terminal(cli: Cli, tmp_path: Path) -> None:
    run_in(tmp_path / "run")
    done = cli("report", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    text = re.sub(r"\s+", " ", done.stdout)
    assert "engine 2 20.2% weights 20% decode 57%, weight sync 18%" in text
    assert "peers 80 1.12 GiB 377 ms 3.18 GB/s" in text
    assert "tokens: 2,621,600 decoded, 2,497,847 trained on (95.3%), 35,100 wasted (1.3%)" in text
    assert "finding: engine 1 waited 38 % of the time for weights" in text


def test_json_has_the_figures_and_not_the_picture(cli: Cli, tmp_path: Path) -> None:
    run_in(tmp_path / "run", steps=5)
    done = cli("report", "run", "--json", cwd=tmp_path)
    body = json.loads(done.stdout)["hybrid"]
    assert body["num_decoded_tokens"] == 5 * 65_540
    assert body["syncs"][0]["bytes_per_s"] > 1e9
    assert {use["role"]: use["num_ranks"] for use in body["roles"]}["engine"] == 2
    assert "segments" not in body["lanes"][0]
    assert len(done.stdout) < 60_000


def test_a_stage_that_ended_shows_both(cli: Cli, tmp_path: Path) -> None:
    directory = write_finished(tmp_path / "run", record("grpo", 100))
    write_async_run(directory.path, steps=5)
    done = cli("report", "run", "--page", "run.html", "--plot", "run.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "generation" in done.stdout
    assert "finding: " in done.stdout
    page = (tmp_path / "run.html").read_text()
    assert "<title>run: grpo of" in page
    assert "greedy on" in page
    assert "carried rollouts" in (tmp_path / "run.svg").read_text()


def test_a_stage_that_stopped_says_why(cli: Cli, tmp_path: Path) -> None:
    directory = run_in(tmp_path / "run", steps=5)
    assert "the stage has not ended; 5 steps so far" in cli("report", "run", cwd=tmp_path).stdout
    reason = "every checkpoint is [damaged]: start again in another --run-dir"
    info = ExitInfo(code=2, reason=reason, job="7", attempt=1, rank=0, last_checkpoint=None, time=1.0)
    directory.write_exit_info(info)
    done = cli("report", "run", "--page", "run.html", cwd=tmp_path)
    words = f"the stage stopped after 5 steps with exit code 2: {reason}"
    assert words in re.sub(r"\s+", " ", done.stdout)
    assert words.removeprefix("the") in (tmp_path / "run.html").read_text()
    body = json.loads(cli("report", "run", "--json", cwd=tmp_path).stdout)
    assert (body["exit_code"], body["end"]) == (2, reason)


def test_the_page_loads_nothing_and_escapes_every_text(cli: Cli, tmp_path: Path) -> None:
    run_in(tmp_path / "run", steps=25, hostile=HOSTILE)
    assert cli("report", "run", "--page", "run.html", cwd=tmp_path).returncode == 0
    page = (tmp_path / "run.html").read_text()
    assert "<script" not in page
    assert page.count("&lt;/title&gt;&lt;script&gt;") >= 2
    assert not re.search(r'(?:src|href)="', page)
    assert page.count('class="lane-bar"') == 2 * 6
    assert page.count('class="restart"') == 1
    assert len(page) < 200_000


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--page", "run.txt"), "names no page: end it in .html"),
        (("--page", "sft.html"), "has no page: only a training run and a stage that trains"),
        (("--plot", "sft.svg"), "which has no plot: see its curve.jsonl"),
    ],
)  # fmt: skip
def test_what_has_no_page_is_refused(cli: Cli, tmp_path: Path, args: tuple[str, ...], sentence: str) -> None:
    write_finished(tmp_path / "run", record("sft", 100))
    done = cli("report", "run", *args, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert not (tmp_path / args[1]).exists()
