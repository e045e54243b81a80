"""A summary holds what the events say: medians without the warm-up, split, energy, network, prediction."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scalewright.errors import ConfigError
from scalewright.observe.collect import collect
from scalewright.observe.rollup import write_rollup
from scalewright.observe.summary import summarize
from scalewright.records import metric_names as names
from scalewright.records.documents import document
from scalewright.records.events import EventLine, EventWriter
from scalewright.records.run_directory import RunDirectory

from .run_maker import SPLIT, START_S, make_run

Cli = Callable[..., subprocess.CompletedProcess[str]]


def test_summary_of_a_run(tmp_path: Path) -> None:
    summary = summarize(collect(make_run(tmp_path / "r")))
    assert (summary.num_steps, summary.num_ranks, summary.end) == (20, 2, "finished")
    step_time = summary.compared(names.STEP_TIME)
    assert (step_time.measured, step_time.predicted) == (1.0, 0.8)
    assert step_time.ratio_frac == pytest.approx(1.25)
    assert step_time.inside is True
    assert summary.compared(names.TOKENS_PER_S).measured == 256.0
    assert summary.compared(names.TOKENS_PER_S).predicted == 250.0
    assert summary.compared(names.FLOP_PER_S).predicted == pytest.approx(1e9)
    assert summary.compared(names.PEAK_MEMORY).measured == 1.1e8
    assert summary.split_s == pytest.approx(SPLIT)
    assert (summary.num_split_steps, summary.split_of_s) == (2, 1.0)
    assert summary.losses == pytest.approx((5.9, 4.0))


def test_of_ranks_that_differ_the_slowest_is_the_jobs_speed(tmp_path: Path) -> None:
    """All ranks wait for the last: time and throughput of a step must tell the same story."""
    directory = make_run(tmp_path / "r")
    writer, line = EventWriter(directory.rank_events(1)), EventLine(job="job0", rank=1, host="n1")
    for step in range(4, 21):
        for name, value in (
            (names.STEP_TIME, 2.0),
            (names.TOKENS_PER_S, 128.0),
            (names.FLOP_PER_S, 5e8),
            (names.MFU, 0.2),
        ):
            writer.append(line.format(time_s=START_S + step, step=step, name=name, value=value, unit=names.UNITS[name]))
    writer.close()
    summary = summarize(collect(directory))
    assert summary.compared(names.STEP_TIME).measured == 2.0
    assert summary.compared(names.TOKENS_PER_S).measured == 128.0
    assert summary.compared(names.FLOP_PER_S).measured == 5e8
    assert summary.compared(names.MFU).measured == 0.2


def test_energy_is_the_growth_of_the_counters(tmp_path: Path) -> None:
    summary = summarize(collect(make_run(tmp_path / "r")))
    assert summary.energy_j == pytest.approx(20 * (100.0 + 28.0))
    assert summary.energy_of == "CPUs and GPUs"
    assert summary.tokens_per_j == pytest.approx(256.0 / 128.0)
    assert summary.network_bytes_per_s == pytest.approx(5e6)
    assert summary.sampling_frac == pytest.approx(0.001)
    assert summary.power_w == pytest.approx(100.0)  # not the 80 W of the warm-up


def test_resumed_run_counts_a_repeated_step_once_and_no_energy_between_attempts(tmp_path: Path) -> None:
    make_run(tmp_path / "r", num_steps=12)
    run = collect(make_run(tmp_path / "r", first_step=11, num_steps=20, step_s=2.0, attempt=1))
    assert run.step_numbers == list(range(1, 21))
    assert run.steps[names.STEP_TIME][11] == {0: 2.0, 1: 2.0}
    assert summarize(run).energy_j == pytest.approx((12 + 20) * 128.0)


def test_steps_that_the_run_says_count_are_the_summarys(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "r")
    writer, line = EventWriter(directory.rank_events(0)), EventLine(job="job0", rank=0, host="n1")
    writer.append(line.format(time_s=START_S + 30, step=2, name=names.EVENT_STEADY, value=1.0, unit="s", detail="x"))
    writer.close()
    run = collect(directory)
    assert run.steady_steps == [step for step in range(2, 21) if step not in (10, 11)]  # profiled ones do not count


def test_measurement_far_from_the_prediction_is_said_to_be_outside(tmp_path: Path) -> None:
    summary = summarize(collect(make_run(tmp_path / "r", step_s=4.0)))
    assert summary.compared(names.STEP_TIME).inside is False


def test_an_interval_with_an_open_end_is_no_interval(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "r")
    body = json.loads(directory.prediction.read_text())
    body["step_time_interval_s"] = [1.0, None]
    directory.prediction.write_text(json.dumps(body))
    compared = summarize(collect(directory)).compared(names.STEP_TIME)
    assert (compared.interval, compared.inside) == (None, None)


def test_rollup_has_percentiles_per_minute_and_rates_of_counters(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "r")
    rows = {(row.minute, row.name): row for row in write_rollup(directory)}
    row = rows[int(START_S // 60), names.STEP_TIME]
    assert (row.num, row.p50, row.unit) == (40, 1.0, "s")
    assert row.p95 == pytest.approx(9.0)
    assert row.mean == pytest.approx((3 * 9 + 17) / 20)
    network = rows[int(START_S // 60), names.NETWORK_RECEIVED]
    assert (network.p50, network.unit) == (pytest.approx(5e6), "bytes/s")
    lines = [json.loads(text) for text in directory.rollup.read_text().splitlines()]
    assert lines[0] == {"schema": "scalewright.rollup/1"}
    assert {"minute", "name", "unit", "num", "p50", "p95", "mean"} == set(lines[1])


def test_run_that_never_started_is_refused(tmp_path: Path) -> None:
    directory = RunDirectory.create_or_resume(tmp_path / "r", document("language-run", {}))
    with pytest.raises(ConfigError, match="no events yet"):
        collect(directory)


def test_run_without_prediction_or_profile_is_reported_as_far_as_it_goes(tmp_path: Path, cli: Cli) -> None:
    directory = make_run(tmp_path / "r", num_steps=8)
    directory.prediction.unlink()
    directory.exit_info.unlink()
    result = cli("report", str(directory.path))
    assert result.returncode == 0, result.stderr
    assert "no step was profiled" in result.stdout
    assert "still running, or killed" in " ".join(result.stdout.split())


def test_report_prints_the_split_and_the_prediction_beside_the_measurement(tmp_path: Path, cli: Cli) -> None:
    directory = make_run(tmp_path / "r")
    result = cli("report", str(directory.path))
    assert result.returncode == 0, result.stderr
    text = " ".join(result.stdout.split())
    assert "step time 1.00 s 800 ms 1.25 inside 500 ms to 2.00 s" in text
    assert "exposed communication 200 ms 20.0%" in text
    assert "tokens/J" in text
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_report_as_a_document_and_as_a_picture(tmp_path: Path, cli: Cli) -> None:
    directory = make_run(tmp_path / "r")
    before = {p: p.read_bytes() for p in directory.path.rglob("*") if p.is_file()}
    result = cli(
        "report", str(directory.path), "--json", "--plot", str(tmp_path / "run.svg"), "--out", str(tmp_path / "o")
    )
    doc = json.loads(result.stdout)
    assert next(iter(doc.items())) == ("schema", "scalewright.run-summary/1")
    assert json.loads((tmp_path / "o").read_text()) == doc
    picture = (tmp_path / "run.svg").read_text()
    for words in ("exposed", "tokens/s", "predicted", "allocated memory (GiB)", "energy (kJ)", "gpu0"):
        assert words in picture, words
    made = directory.rollup.read_bytes()  # no launcher waited for this run: the report makes its roll-up
    assert {p: p.read_bytes() for p in directory.path.rglob("*") if p.is_file()} == {**before, directory.rollup: made}
    os.utime(directory.rollup, (2e9, 2e9))
    cli("report", str(directory.path))
    assert directory.rollup.stat().st_mtime == 2e9


@pytest.mark.parametrize(
    ("args", "words"),
    [(["nowhere"], "nowhere"), (["."], "is not a run directory"), (["RUN", "--plot", "x.bmp"], ".svg")],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_report_refuses(tmp_path: Path, cli: Cli, refused: Callable[..., str], args: list[str], words: str) -> None:
    directory = make_run(tmp_path / "r")
    message = refused(cli("report", *[str(directory.path) if a == "RUN" else a for a in args], cwd=tmp_path))
    assert words in message
    assert not (tmp_path / "x.bmp").exists()
