"""The `[pipeline]` table: one sentence for each mistake, seeds and sizes, and what a budget leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import Cli, Refused
from tests.pipeline_cases import STUDY

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.errors import ConfigError, DocumentError
from scalewright.study.file import load
from scalewright.study.pipeline.opening import open_measured
from scalewright.study.pipeline.setting import PipelineSetting
from scalewright.study.pipeline.stages import POINT, PlannedPipeline, expand_pipeline, references, with_folders
from scalewright.study.pipeline.tables import Pipeline


def table(tmp_path: Path, text: str = STUDY) -> Pipeline:
    (tmp_path / "mine.toml").write_text(text)
    pipeline = load(tmp_path / "mine.toml").pipeline
    assert pipeline is not None
    return pipeline


def planned(pipeline: Pipeline, profile: str = "cpu", budget: str = "") -> PlannedPipeline:
    return expand_pipeline(pipeline, PipelineSetting(profile=profile, budget=budget))[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "grpo-unmasked"', 'name = "grpo"', "two stages are named 'grpo'"),
        ('from = "sft"', 'from = "sfd"', "which is no stage: did you mean sft?"),
        ('from = "sft"', 'from = "samples"', "which comes later: stages run in the order of the file"),
        ('from = "sft"', 'from = "grpo"', "which is itself"),
        ('data_from = "samples"', 'data_from = "grpo"', "a stage of grpo, which writes no answers"),
        ('from = "grpo"\n', 'from = "sft"\ndata_from = "grpo"\n', "which writes no answers"),
        ('data_from = "samples"', 'from = "samples"', "a stage of generate, which writes no weights"),
        ('over = "sft"', 'over = "student"', "gate.over = 'student', which comes later"),
        ("by = 0.05", "by = 5", "less than or equal to 1"),
        ("seeds = [0]", "seeds = [1, 1]", "has one twice"),
        ("seeds = [0]", "seeds = []", "seeds"),
        ('stage = "distill"', 'stage = "distil"', "distill"),
        ("options = { steps = 50 }", "options = { steps = 50, seed = 3 }", "write it as its key 'seeds'"),
        ('takes = { cpu = "2 min"', "takes = { cpu = 2", "write it with its unit"),
        ("[pipeline]\n", "[pipeline]\nprofil = 'cpu'\n", "profil"),
        ("[pipeline]\n", "[measure]\norder = 'predicted'\n\n[pipeline]\n", "runs in the order of its stages"),
        ("[pipeline]\n", "[measure]\nmatrix = { steps = [1, 2] }\n\n[pipeline]\n", "not both"),
    ],
)
def test_one_sentence_says_what_is_wrong(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in STUDY
    with pytest.raises(DocumentError) as error:
        table(tmp_path, STUDY.replace(old, new, 1))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_sizes_follow_the_profile_and_options_of_a_stage_override_the_pipelines(tmp_path: Path) -> None:
    text = STUDY.replace("options = { steps = 50 }", "options = { steps = 50 }\nsizes = { ranks = { steps = 70 } }")
    pipeline = table(tmp_path, text)
    _, cpu = expand_pipeline(pipeline, PipelineSetting(profile="cpu"))
    _, ranks = expand_pipeline(pipeline, PipelineSetting(profile="ranks"))
    assert [one.options["layout"] for one in cpu] == ["dp=1,mbs=8,gbs=16"] * 5
    assert [one.options["layout"] for one in ranks] == ["dp=2,mbs=8,gbs=16"] * 5
    assert (cpu[-1].options["steps"], ranks[-1].options["steps"]) == (50, 70)
    with pytest.raises(ConfigError, match="no sizes for the profile gpu"):
        expand_pipeline(pipeline, PipelineSetting(profile="gpu"))


def test_a_stage_names_the_points_that_it_needs_so_that_a_change_reaches_later_stages(tmp_path: Path) -> None:
    first = planned(table(tmp_path))
    other = planned(table(tmp_path, STUDY.replace("steps = 200", "steps = 201")))
    assert [run.name for run in first.runs] == ["sft", "grpo", "grpo-unmasked", "samples", "student"]
    assert not {run.point for run in first.runs} & {run.point for run in other.runs}
    later = planned(table(tmp_path, STUDY.replace("steps = 50", "steps = 51")))
    assert [a.point == b.point for a, b in zip(first.runs, later.runs, strict=True)] == [True] * 4 + [False]
    sft, grpo, _, samples, student = first.runs
    assert (grpo.needs, samples.needs, student.needs) == ((sft.point,), (grpo.point,), (samples.point,))
    assert (grpo.over, samples.gated_by, sft.gated_by) == (sft.point, (grpo.point,), ())


def test_a_gate_is_no_part_of_a_point(tmp_path: Path) -> None:
    changed = planned(table(tmp_path, STUDY.replace("by = 0.05", "by = 0.06")))
    assert [run.point for run in changed.runs] == [run.point for run in planned(table(tmp_path)).runs]


def test_seeds_of_a_stage_start_from_the_same_seed_or_from_the_first(tmp_path: Path) -> None:
    text = STUDY.replace('correction = "icepop" }', 'correction = "icepop" }\nseeds = [0, 1, 2]')
    runs = planned(table(tmp_path, text)).runs
    grpo = [run for run in runs if run.name == "grpo"]
    assert [run.seed for run in grpo] == [0, 1, 2]
    assert len({run.point for run in grpo}) == 3
    assert {run.needs for run in grpo} == {(runs[0].point,)}
    samples = next(run for run in runs if run.name == "samples")
    assert samples.needs == (grpo[0].point,)
    whole = planned(table(tmp_path, STUDY.replace("seeds = [0]", "seeds = [3, 4]"))).runs
    by_name = {(run.name, run.seed): run for run in whole}
    assert by_name["student", 4].needs == (by_name["samples", 4].point,)
    assert by_name["student", 4].gated_by == (by_name["grpo", 4].point,)


@pytest.mark.parametrize(
    ("budget", "names", "share"),
    [
        ("8 min", ["sft", "grpo", "grpo-unmasked", "samples", "student"], 1.0),
        ("6 min", ["sft", "grpo", "grpo-unmasked", "samples", "student"], 0.75),
        ("5.3 min", ["sft", "grpo", "grpo-unmasked"], 5.3 / 6.0),
        ("4 min", ["sft", "grpo"], 1.0),
        ("2min", ["sft", "grpo"], 0.5),
    ],
)
def test_a_budget_leaves_out_the_last_stages_before_it_shrinks_the_first(
    tmp_path: Path, budget: str, names: list[str], share: float
) -> None:
    plan, combinations = expand_pipeline(table(tmp_path), PipelineSetting(profile="cpu", budget=budget))
    assert plan.names == names
    assert combinations[0].options["steps"] == round(200 * share)
    assert combinations[1].options["steps"] == round(100 * share)
    assert budget in plan.sentence
    every = ["sft", "grpo", "grpo-unmasked", "samples", "student"]
    left_out = ", ".join(every[len(names) :])
    assert ("left out: " in plan.sentence) is bool(left_out)
    assert plan.sentence.endswith(left_out)


def test_a_budget_runs_one_seed(tmp_path: Path) -> None:
    plan = planned(table(tmp_path, STUDY.replace("seeds = [0]", "seeds = [3, 4, 5]")), budget="8 min")
    assert {run.seed for run in plan.runs} == {3}
    assert "with one seed" in plan.sentence


def test_a_budget_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"too short for sft and grpo, which take .*: give at least 24"):
        planned(table(tmp_path), budget="10 s")
    without = STUDY.replace('takes = { cpu = "1 min", ranks = "1 min" }\n', "", 1)
    with pytest.raises(ConfigError, match="needs the usual time of every stage, and samples has none"):
        planned(table(tmp_path, without), budget="4 min")


def test_a_budget_in_which_nothing_is_learnt_is_refused(tmp_path: Path) -> None:
    profile = 'text = "two cores"\n'
    least = table(tmp_path, STUDY.replace(profile, f'{profile}least_budget = "3 min"\n'))
    rule = r"a budget of 1 min is too short: the least useful budget of this study is .* \(cpu\), .*: give .* or more"
    with pytest.raises(ConfigError, match=rule):
        planned(least, budget="1 min")
    assert planned(least, budget="3 min").names == ["sft", "grpo"]
    assert planned(least, budget="1 min", profile="ranks").names == ["sft", "grpo"]


def test_the_shipped_pipeline_has_a_least_budget(tmp_path: Path, cli: Cli, refused: Refused) -> None:
    done = cli("study", "run", "hpc-r1", "--budget", "1min", cwd=tmp_path)
    assert "the least useful budget of this study is 240 s (cpu)" in refused(done)
    assert list(tmp_path.iterdir()) == []
    lines = cli("study", "check", "hpc-r1").stdout.splitlines()
    assert "  8 stages for cpu (budget of 240 s or more)" in lines
    assert max(map(len, lines)) <= 80
    study, _ = open_measured(Catalog((packaged_data(),)), "hpc-r1", tmp_path / "r", budget="5min")
    assert study.pipeline is not None
    assert study.pipeline.names == ["sft", "grpo"]


def test_points_in_options_become_folders() -> None:
    options = {"start_from": f"{POINT}abc", "steps": 3, "model": "tiny"}
    assert references(options) == ["abc"]
    assert with_folders(options, {"abc": "/runs/abc"}) == {"start_from": "/runs/abc", "steps": 3, "model": "tiny"}
