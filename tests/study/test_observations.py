"""Published observations: what is predicted of each, what stages that ran say, and the verdicts."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from tests.conftest import Cli

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.catalog.observations import ObservedFigure, load_observations
from scalewright.costs.machine import machine_from_system
from scalewright.errors import UnknownNameError
from scalewright.records.observations import ObservationRow, ObservationTable
from scalewright.records.reasoning import (
    CollectiveUse,
    CurvePoint,
    MeasuredWork,
    StageRecord,
    StepSplitShares,
    append_row,
    curve_writer,
    write_stage,
)
from scalewright.records.run_directory import RunDirectory
from scalewright.records.study_report import Number
from scalewright.report.study.files import markdown
from scalewright.study.observations.evidence import ratio_interval, share_interval, verdict_of
from scalewright.study.observations.serving import pipeline_weights
from scalewright.study.observations.table import CHECKS, MEASURES, observation_findings, observation_table
from scalewright.study.points import open_study
from scalewright.study.report_builder import predicted_report

CATALOG = Catalog((packaged_data(),))
PUBLISHED = {
    "sft-network": 7.16,
    "sft-weak-scaling": 9.80e12,
    "sft-minimum": 4,
    "rl-not-compute": 0.90,
    "rl-all-reduce": 0.65,
    "rl-minimum": 64,
    "generation-utilisation": 0.44,
    "generation-rank-gap": 0.64,
    "generation-minimum": 8,
    "distillation-teacher": 32,
    "distillation-student": 1,
}
"""Figures that HPC-R1 prints, copied from its abstract and the summary."""


@pytest.fixture(scope="module")
def table() -> ObservationTable:
    return observation_table(CATALOG, "hpc-r1")


def row(table: ObservationTable, name: str) -> ObservationRow:
    return next(row for row in table.rows if row.id == name)


def test_hpc_r1_has_nineteen_observations_in_four_stages() -> None:
    observations = load_observations("hpc-r1").observations
    stages = [observed.stage for observed in observations]
    counts = {stage: stages.count(stage) for stage in ("sft", "rl", "generation", "distillation")}
    assert counts == {"sft": 4, "rl": 7, "generation": 6, "distillation": 2}
    assert {o.id: o.figure.value for o in observations if o.figure is not None} == PUBLISHED
    assert all(o.source.text and o.source.url for o in observations)
    assert {o.check for o in observations} - {""} == set(CHECKS)
    assert {o.measure for o in observations} - {""} == set(MEASURES)
    with pytest.raises(UnknownNameError, match="hpc-r1"):
        load_observations("hpc-r2")


def test_what_our_sources_do_not_say_is_not_made_up(table: ObservationTable) -> None:
    unknown = [row for row in table.rows if not row.assumption]
    assert [row.id for row in unknown] == ["rl-6", "rl-7"]
    for missing in unknown:
        assert "not in our sources" in missing.text
        assert missing.predicted.verdict == "cannot say"
        assert missing.published == ""


def test_every_other_observation_is_predicted_with_an_assumption(table: ObservationTable) -> None:
    for observed in table.rows:
        if observed.assumption:
            assert any(letter.isdigit() for letter in observed.predicted.text), observed.id
            assert observed.not_measured, observed.id
        assert observed.measured is None


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in ("distillation-teacher",)])
def test_a_verdict_follows_from_the_number_that_is_shown(table: ObservationTable, name: str) -> None:
    """The interval of the number beside the published figure gives the verdict, where there is one number."""
    ours = row(table, name).predicted
    if ours.value is None or ours.low is None or ours.high is None:
        return
    if name in ("rl-not-compute", "rl-all-reduce"):
        assert ours.verdict == "does not hold"
        assert ours.high < PUBLISHED[name]
    elif ours.verdict == "holds":
        assert ours.low <= PUBLISHED[name] <= ours.high
    else:
        assert not ours.low <= PUBLISHED[name] <= ours.high


def test_rates_of_weak_scaling_are_flat_and_far_above_the_published_one(table: ObservationTable) -> None:
    """9.80 TFLOP/s is 3 % of an A100's peak of 312: an honest miss."""
    ours = row(table, "sft-weak-scaling").predicted
    assert ours.text.startswith("flat: ")
    assert ours.value is not None
    assert ours.value > 10 * PUBLISHED["sft-weak-scaling"]
    assert ours.verdict == "does not hold"


def test_minimum_gpus_name_mode_and_partition(table: ObservationTable) -> None:
    """No partition has all published minima: agreement is counted for each."""
    published = [minimum for minimum in table.minima if minimum.published is not None]
    assert [minimum.published for minimum in published] == [4, 64, 8, 32, 1, 1]
    by_partition = {name: [minimum.num_gpus[name] for minimum in published] for name in ("gpu-40", "gpu-80")}
    assert by_partition == {"gpu-40": [8, 64, 8, 64, 1, 2], "gpu-80": [4, 32, 2, 32, 1, 1]}
    assert {minimum.mode for minimum in table.minima} == {
        "full (Adam)", "LoRA", "offload (state on hosts)", "served, 16 bit",
    }  # fmt: skip
    texts = [finding.text for finding in observation_findings(table)]
    assert any("3 on gpu-40 and 4 on gpu-80 are predicted exactly" in text for text in texts)
    assert row(table, "generation-minimum").predicted.verdict == "cannot say"


def test_a_minimum_is_held_against_the_partition_that_the_artifact_names(table: ObservationTable) -> None:
    assert row(table, "sft-minimum").predicted.verdict == "holds"
    assert row(table, "rl-minimum").predicted.verdict == "does not hold"
    assert row(table, "rl-minimum").predicted.text == "64 of 40 GB, 32 of 80 GB; mode full (Adam)"


def test_the_study_shows_observations_and_counts_partitions_apart() -> None:
    report = predicted_report(CATALOG, open_study(CATALOG, "hpc-r1"))
    assert report.observations is not None
    assert len(report.document()["observations"]["rows"]) == 19
    text = markdown(report)
    assert "| rl | RL of a 70B model needs at least 64 GPUs | 64 GPUs | 64 of 40 GB, 32 of 80 GB; mode full" in text
    assert "## Fewest GPUs" in text
    texts = [finding.text for finding in report.findings]
    answers = [finding.text for finding in report.findings if finding.is_answer]
    assert texts[: len(answers)] == answers
    assert texts[len(answers)].startswith("of 19 published observations, predicted for perlmutter: ")
    assert not any("of 12 published figures" in text for text in texts)
    assert sum("with system perlmutter-" in text for text in texts) == 2


@pytest.mark.parametrize(
    ("sense", "low", "high", "verdict"),
    [
        ("about", 0.4, 0.6, "holds"),
        ("about", 0.6, 0.7, "does not hold"),
        ("up to", 0.3, 0.5, "holds"),
        ("above", 0.6, 0.7, "holds"),
        ("above", 0.2, 0.4, "does not hold"),
        ("above", 0.4, 0.6, "cannot say"),
    ],
)
def test_verdicts_of_intervals(sense: str, low: float, high: float, verdict: str) -> None:
    figure = ObservedFigure.model_validate({"value": 0.5, "unit": "share", "sense": sense})
    assert verdict_of(Number(value=(low + high) / 2, low=low, high=high), figure) == verdict


def test_intervals_of_shares_and_ratios() -> None:
    share = share_interval(30.0, 100.0, (80.0, 140.0))
    assert (share.low, share.value, share.high) == (pytest.approx(10 / 80), 0.3, pytest.approx(70 / 140))
    assert share_interval(10.0, 100.0, (50.0, 140.0)).low == 0.0
    ratio = ratio_interval(8.0, (4.0, 16.0), 2.0, (2.0, 2.0))
    assert (ratio.low, ratio.value, ratio.high) == (pytest.approx(2.0), 4.0, pytest.approx(8.0))
    both = ratio_interval(8.0, (4.0, 16.0), 2.0, (1.0, 4.0))
    assert both.high == pytest.approx(4.0 * math.exp(math.sqrt(2) * math.log(2)))


def test_the_gap_between_pipeline_ranks_is_that_of_head_and_dense_layers() -> None:
    """80 layers on 8 ranks divide: the last rank has the head's 128,256 x 8,192 besides."""
    machine = machine_from_system(CATALOG, "perlmutter")
    weights = pipeline_weights(CATALOG, machine, "llama3-70b", tp=1, pp=8)
    assert weights[:-1] == pytest.approx(weights[0])
    assert weights[-1] - weights[0] == pytest.approx(128256 * 8192)
    deep = pipeline_weights(CATALOG, machine, "deepseek-v3", tp=4, pp=8)
    assert deep.argmin() == 0  # three dense layers


def stage_record(stage: str, **changes: object) -> StageRecord:
    body: dict[str, object] = {
        "stage": stage, "model": "tiny", "num_params": 360_000, "num_trained_params": 360_000, "num_ranks": 2,
        "layout": "dp=2", "device": "one CPU", "precision": "fp32", "engine_precision": "fp32", "seed": 0, "steps": 10,
        "num_attempts": 1, "wall_s": 30.0, "accuracy": None, "seconds_by_part": {}, "rank_seconds_by_part": [],
        "rank_gap_frac": 0.7, "split": StepSplitShares(
            compute_frac=0.05, communication_frac=0.8, data_wait_frac=0.0, idle_frac=0.15),
        "collectives": {"all_reduce": CollectiveUse(count=4, bytes=1e6, seconds=9.0),
                        "all_gather": CollectiveUse(count=4, bytes=1e6, seconds=1.0)},
        "utilisation_frac": 0.3, "roofline": [MeasuredWork(name="decode", flop=4e9, bytes=2e9, seconds=1.0)],
        "kv_occupancy_frac": 0.5, "kv_peak_frac": 1.0, "host_bytes": 1e9, "device_bytes": 2e9, "energy_j": None,
        "energy_of": "", "cost_usd": None, "num_samples": 100, "num_tokens": 1000, "train_flop": 1e9, "mismatch": None,
    }  # fmt: skip
    return StageRecord(**(body | changes))  # type: ignore[arg-type]


def run_of(folder: Path, record: StageRecord, losses: tuple[float, ...] = ()) -> RunDirectory:
    directory = RunDirectory(folder / record.stage)
    directory.path.mkdir()
    write_stage(directory, record)
    if losses:
        writer = curve_writer(directory, first_step=0)
        for step, loss in enumerate(losses):
            append_row(writer, CurvePoint(step=step, loss=loss).row())
    return directory


def test_stages_that_ran_are_evidence(tmp_path: Path) -> None:
    runs = [
        run_of(tmp_path, stage_record("sft")),
        run_of(tmp_path, stage_record("grpo")),
        run_of(tmp_path, stage_record("generate", wall_s=90.0)),
        run_of(tmp_path, stage_record("distill", num_ranks=1, wall_s=20.0), losses=(3.0, 2.0, 1.0)),
    ]
    table = observation_table(CATALOG, "hpc-r1", runs)
    verdicts = {row.id: row.measured.verdict for row in table.rows if row.measured is not None}
    assert verdicts == {
        "sft-backend": "holds",  # 80 % of the steps
        "rl-not-compute": "holds",  # 95 %
        "rl-all-reduce": "holds",  # 0.8 x 9 / 10 = 72 %
        "rl-host-memory": "cannot say",
        "generation-utilisation": "holds",  # 30 %
        "generation-memory-bound": "cannot say",  # the device's peaks are not known
        "generation-communication": "holds",
        "generation-rank-gap": "holds",  # 70 %
        "generation-cache": "holds",
        "distillation-teacher": "holds",  # 180 s of 200
        "distillation-student": "holds",
    }
    measured = {row.id: row.measured.text for row in table.rows if row.measured is not None}
    assert "AllReduce takes 72 %" in measured["rl-all-reduce"]
    assert "from 3.00 to 1.00 and did not diverge" in measured["distillation-student"]
    assert row(table, "rl-not-compute").verdict == "holds"  # what was measured counts first
    assert row(table, "rl-not-compute").predicted.verdict == "does not hold"
    assert observation_findings(table)[-1].text == (
        "of 19 published observations, measured here: 9 hold, 0 do not, 10 cannot be decided"
    )


def test_what_a_run_cannot_show_says_why(tmp_path: Path) -> None:
    alone = {"num_ranks": 1, "split": None, "collectives": {}, "device_bytes": None}
    runs = [
        run_of(tmp_path, stage_record("grpo", **alone, utilisation_frac=None)),
        run_of(tmp_path, stage_record("generate", **alone, kv_peak_frac=0.2)),
        run_of(tmp_path, stage_record("distill", **alone), losses=(1.0, 3.0)),
    ]
    table = observation_table(CATALOG, "hpc-r1", runs)
    assert row(table, "sft-backend").not_measured == "no sft stage was run"
    assert row(table, "rl-all-reduce").not_measured == "one rank has nothing to sum"
    assert row(table, "rl-not-compute").not_measured == "the use of the device was not measured"
    assert row(table, "generation-utilisation").measured is not None
    assert row(table, "generation-utilisation").measured.verdict == "cannot say"  # a CPU's  # type: ignore[union-attr]
    assert row(table, "generation-cache").verdict == "does not hold"
    student = row(table, "distillation-student").measured
    assert student is not None
    assert student.text.endswith("diverged")


def test_where_an_observation_does_not_hold_one_sentence_says_why_with_terms(table: ObservationTable) -> None:
    """The terms are those of the prediction, with their times or sizes; where it holds, nothing is explained."""
    failing = [row for row in table.rows if row.predicted.verdict == "does not hold"]
    assert failing
    for row in table.rows:
        assert bool(row.predicted.why) == (row in failing), row.id
    for row in failing:
        assert ". " not in row.predicted.why, row.id
        assert re.search(r"(matmul|optimizer|data parallel) [\d.]+ (s|ms|GiB)", row.predicted.why), row.id
        assert "None" not in row.predicted.why


def test_utilisation_of_generation_is_one_figure_wherever_it_is_shown(cli: Cli) -> None:
    """Of the study's stage, the observation and `predict`: the share of time that reads or computes."""
    report = predicted_report(CATALOG, open_study(CATALOG, "hpc-r1"))
    labels = {"stage": "generation", "model": "llama3-70b", "mode": "full", "system": "perlmutter-40"}
    (point,) = [row for row in report.points if row.labels == labels]
    shown = f"{100 * point.predicted['utilisation_frac'].value:.1f} %"
    done = cli(
        "predict", "--model", "llama3-70b", "--system", "perlmutter", "--partition", "gpu-40", "--precision", "bf16",
        "--layout", "tp=8,gbs=256", "--generate", "prompt=512,response=1024", "--stack", "eager",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(rf"utilisation +{re.escape(shown)}", done.stdout), (shown, done.stdout)
