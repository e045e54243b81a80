"""Stages of a tiny model: what they learn, what they write, how they resume, and how they refuse."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from stage_cases import CPU, SPEC, TASK, curve_of, run_in, stage_of

from scalewright.data.reasoning.countdown import CountdownTask
from scalewright.data.reasoning.task import Problem, Score
from scalewright.errors import ConfigError
from scalewright.records.hybrid import read_hybrid, read_timeline
from scalewright.records.reasoning import (
    PARTS,
    read_curve,
    read_rollouts,
    read_shard_head,
    read_stage,
    read_stored_answers,
)
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import ExitCode
from scalewright.run.device import join_group
from scalewright.run.generate.open import checkpoint_weights
from scalewright.run.world import World
from scalewright.workload.language_run import OptimizerSettings
from scalewright.workload.reasoning.policy_loss import policy_loss
from scalewright.workload.reasoning.stage_run import (
    DistillSettings,
    EngineSettings,
    EvaluationSettings,
    GenerateSettings,
    GrpoSettings,
    NoSettings,
    ReasonRun,
    SftSettings,
)

SFT = SftSettings(num_traces=256, packs=False)
NUM_STARTED = 130
FAST = OptimizerSettings(learning_rate=2e-2, warmup_steps=5)
NO_EVALUATION = EvaluationSettings(num_problems=0)


@pytest.fixture(scope="module", autouse=True)
def one_rank() -> Iterator[None]:
    torch.set_num_threads(1)
    join_group(World.from_environment({}, host="here"), CPU)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that writes some right answers."""
    path = tmp_path_factory.mktemp("started") / "sft"
    assert run_in(path, stage_of("sft", SFT, steps=NUM_STARTED, gbs=32, optimizer=FAST)) == ExitCode.YES
    return path


def grpo(start: Path | str = "", *, steps: int = 4, loss: str = "grpo", **others: Any) -> ReasonRun:
    settings = GrpoSettings(num_prompts=8, num_answers=4, loss=policy_loss(loss, **others.pop("bounds", {})))
    given = {"evaluation": NO_EVALUATION, "gbs": 16, **others}
    return stage_of("grpo", settings, steps=steps, start_from=str(start), **given)


def weights_of(path: Path) -> dict[str, torch.Tensor]:
    folder = RunDirectory(path).last_checkpoint()
    assert folder is not None
    return dict(checkpoint_weights(folder, device=CPU))


def test_sft_learns_and_records_where_its_time_went(started: Path) -> None:
    curve, record = curve_of(started), read_stage(RunDirectory(started))
    assert [point.step for point in curve] == list(range(NUM_STARTED))
    assert curve[-1].loss is not None
    assert curve[0].loss is not None
    assert curve[-1].loss < 0.6 * curve[0].loss
    assert record.num_samples == NUM_STARTED * 32
    assert record.accuracy is not None
    assert record.accuracy.num_problems == 8
    assert set(record.seconds_by_part) <= set(PARTS)
    assert record.seconds_by_part["data"] > 0
    inside = sum(s for part, s in record.seconds_by_part.items() if part not in ("evaluation", "checkpoint"))
    assert inside == pytest.approx(record.wall_s)
    assert record.train_flop > 6 * SPEC.num_params * 0.5 * record.num_tokens
    assert {point.name for point in record.roofline} == {"prefill", "decode", "training"}


@pytest.mark.parametrize("packs", [False, True])
def test_a_stopped_sft_goes_the_same_way(tmp_path: Path, packs: bool) -> None:
    config = stage_of("sft", SftSettings(num_traces=20, packs=packs), steps=6, evaluation=NO_EVALUATION)
    assert run_in(tmp_path / "whole", config) == ExitCode.YES
    assert run_in(tmp_path / "cut", config, stop_after=3) == ExitCode.REQUEUE
    assert run_in(tmp_path / "cut", config) == ExitCode.YES
    assert curve_of(tmp_path / "cut") == curve_of(tmp_path / "whole")
    assert read_stage(RunDirectory(tmp_path / "cut")).num_attempts == 2
    for name, values in weights_of(tmp_path / "whole").items():
        assert torch.equal(values, weights_of(tmp_path / "cut")[name]), name


@pytest.mark.parametrize(
    ("loss", "bounds"), [("grpo", {"kl_coef": 0.01}), ("dapo", {"correction": "tis"}), ("gspo", {}), ("dr-grpo", {})]
)
def test_a_stopped_grpo_goes_the_same_way(started: Path, tmp_path: Path, loss: str, bounds: dict[str, Any]) -> None:
    config = grpo(started, loss=loss, bounds=bounds)
    assert run_in(tmp_path / "whole", config) == ExitCode.YES
    assert run_in(tmp_path / "cut", config, stop_after=2) == ExitCode.REQUEUE
    assert run_in(tmp_path / "cut", config) == ExitCode.YES
    whole = curve_of(tmp_path / "whole")
    assert curve_of(tmp_path / "cut") == whole
    assert all(point.masked_frac == 0.0 for point in whole), "engine and trainer have the same precision"
    assert all(point.kl_engines is not None and point.kl_engines < 1e-6 for point in whole)
    assert (whole[-1].kl_reference is not None) == (loss == "grpo")
    record = read_stage(RunDirectory(tmp_path / "cut"))
    assert record.num_groups >= 32
    assert record.mismatch is not None
    assert record.mismatch.effective_sample_frac == pytest.approx(1.0, abs=1e-3)
    assert read_rollouts(RunDirectory(tmp_path / "cut"))[0].why


def test_a_stopped_grpo_has_one_timeline_and_each_iteration_once(started: Path, tmp_path: Path) -> None:
    config = grpo(started, steps=4)
    assert run_in(tmp_path / "r", config, stop_after=2) == ExitCode.REQUEUE
    assert run_in(tmp_path / "r", config) == ExitCode.YES
    directory = RunDirectory(tmp_path / "r")
    spans, record = read_timeline(directory), read_hybrid(directory)
    assert record is not None
    curve = read_curve(directory)
    assert [one.step for one in record.steps] == [point.step for point in curve] == [0, 1, 2, 3]
    assert [one.num_trained_tokens for one in record.steps] == [point.num_tokens for point in curve]
    assert all(one.num_trained_by_staleness == {0: 32} for one in record.steps)
    assert (record.num_attempts, {span.attempt for span in spans}) == (2, {0, 1})
    assert [sync.version for sync in record.syncs] == [1, 2, 3, 4]
    for step, point in enumerate(curve):
        own = [span for span in spans if span.step == step]
        by_kind = {kind: sum(span.seconds for span in own if span.kind == kind) for kind in ("decode", "train")}
        assert by_kind["decode"] == pytest.approx(point.seconds_by_part["generation"], abs=1e-4)
        assert by_kind["train"] == pytest.approx(point.seconds_by_part["training"], abs=1e-4)
        assert sum(span.num_tokens for span in own) == record.steps[step].num_decoded_tokens
    assert all(one.end_s <= other.start_s for one, other in itertools.pairwise(spans))


def test_a_grpo_whose_trainer_and_engine_take_turns_goes_the_same_way(started: Path, tmp_path: Path) -> None:
    whole = grpo(started, steps=3)
    turned = replace(whole, settings=replace(whole.settings, release="on"))  # type: ignore[type-var]
    assert run_in(tmp_path / "whole", whole) == ExitCode.YES
    assert run_in(tmp_path / "turned", turned, stop_after=2) == ExitCode.REQUEUE
    assert run_in(tmp_path / "turned", turned) == ExitCode.YES
    assert curve_of(tmp_path / "turned") == curve_of(tmp_path / "whole")
    for name, values in weights_of(tmp_path / "whole").items():
        assert torch.equal(values, weights_of(tmp_path / "turned")[name]), name
    record = read_stage(RunDirectory(tmp_path / "turned"))
    assert record.seconds_by_part["release"] > 0.0
    assert record.seconds_by_part["restore"] > 0.0
    assert any("took turns on the device: release" in note for note in record.notes)
    assert {"release", "restore"} <= {span.kind for span in read_timeline(RunDirectory(tmp_path / "turned"))}
    assert not {"release", "restore"} & set(read_stage(RunDirectory(tmp_path / "whole")).seconds_by_part)


def test_a_coarse_engine_is_seen(started: Path, tmp_path: Path) -> None:
    config = grpo(started, steps=1, engine=EngineSettings(precision="fp8"))
    assert run_in(tmp_path / "r", config) == ExitCode.YES
    record = read_stage(RunDirectory(tmp_path / "r"))
    assert record.mismatch is not None
    assert record.mismatch.kl > 1e-6


def test_grpo_raises_the_reward(started: Path, tmp_path: Path) -> None:
    assert run_in(tmp_path / "r", grpo(started, steps=20)) == ExitCode.YES
    rewards = [point.reward_mean or 0.0 for point in read_curve(RunDirectory(tmp_path / "r"))]
    assert sum(rewards[-8:]) > sum(rewards[:8])


def test_equal_rewards_end_with_a_sentence_and_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="in all 2 steps all answers to a prompt had the same reward"):
        run_in(tmp_path / "r", grpo(steps=2))
    assert RunDirectory(tmp_path / "r").checkpoint_steps() == [2]


def test_a_bad_reward_keeps_what_was_learnt(started: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    honest = CountdownTask.score_many

    def failing(task: CountdownTask, pairs: list[tuple[Problem, Any]]) -> list[Score]:
        calls.append(len(pairs))
        if len(calls) == 3:
            raise ConfigError("the reward of answer 1 is nan: return a finite number")
        return honest(task, pairs)

    monkeypatch.setattr(CountdownTask, "score_many", failing)
    with pytest.raises(ConfigError, match="the reward of answer 1 is nan"):
        run_in(tmp_path / "r", grpo(started))
    assert RunDirectory(tmp_path / "r").checkpoint_steps() == [2]
    monkeypatch.undo()
    assert run_in(tmp_path / "r", grpo(started)) == ExitCode.YES
    assert run_in(tmp_path / "whole", grpo(started)) == ExitCode.YES
    assert curve_of(tmp_path / "r") == curve_of(tmp_path / "whole")


def test_shards_are_made_once_and_hold_right_answers(started: Path, tmp_path: Path) -> None:
    settings = GenerateSettings(num_problems=24, num_answers=4, shard_problems=8)
    config = stage_of("generate", settings, steps=3, start_from=str(started), evaluation=NO_EVALUATION)
    assert run_in(tmp_path / "r", config, stop_after=1) == ExitCode.REQUEUE
    directory = RunDirectory(tmp_path / "r")
    first = directory.answer_shard(0).read_text()
    assert not directory.answer_shard(1).exists()
    assert run_in(tmp_path / "r", config) == ExitCode.YES
    assert directory.answer_shard(0).read_text() == first
    assert run_in(tmp_path / "whole", config) == ExitCode.YES
    answers, task = read_stored_answers(tmp_path / "r"), CountdownTask(TASK)
    assert answers == read_stored_answers(tmp_path / "whole")
    assert answers
    assert all(answer.is_correct for answer in answers)
    assert len({(answer.problem, answer.response) for answer in answers}) == len(answers)
    problems = {problem.id: problem for problem in task.problems("train", 1000, seed=0)}
    assert all(task.score(problems[answer.problem], answer.response).is_correct for answer in answers)
    record = read_stage(directory)
    assert record.num_samples == 24 * 4
    assert sum(read_shard_head(path).num_sampled for path in directory.answer_shards()) == 96
    assert record.seconds_by_part["generation"] > 0


def test_a_student_learns_from_answers_and_from_probabilities(started: Path, tmp_path: Path) -> None:
    settings = GenerateSettings(num_problems=32, num_answers=4, shard_problems=32)
    assert run_in(tmp_path / "g", stage_of("generate", settings, steps=1, start_from=str(started))) == ExitCode.YES
    data = stage_of("distill", DistillSettings(packs=False), steps=20, data_from=str(tmp_path / "g"), optimizer=FAST)
    assert run_in(tmp_path / "data", data) == ExitCode.YES
    on_policy = DistillSettings(
        mode="on-policy", teacher=str(started), teacher_shape=SPEC.transformer, num_prompts=32, packs=False
    )
    config = stage_of("distill", on_policy, steps=12, gbs=32, start_from=str(tmp_path / "data"), optimizer=FAST)
    assert run_in(tmp_path / "policy", config) == ExitCode.YES
    divergence = [point.kl_reference or 0.0 for point in read_curve(RunDirectory(tmp_path / "policy"))]
    assert divergence[-1] < 0.8 * divergence[0]


def test_adapters_resume_and_a_later_stage_starts_from_them(started: Path, tmp_path: Path) -> None:
    config = stage_of("sft", SFT, steps=6, start_from=str(started), lora_rank=2, evaluation=NO_EVALUATION)
    assert run_in(tmp_path / "whole", config) == ExitCode.YES
    assert run_in(tmp_path / "cut", config, stop_after=3) == ExitCode.REQUEUE
    assert run_in(tmp_path / "cut", config) == ExitCode.YES
    assert curve_of(tmp_path / "cut") == curve_of(tmp_path / "whole")
    record = read_stage(RunDirectory(tmp_path / "cut"))
    assert 0 < record.num_trained_params < record.num_params / 4
    assert run_in(tmp_path / "next", grpo(tmp_path / "cut", steps=2)) == ExitCode.YES
    first = read_curve(RunDirectory(tmp_path / "next"))[0]
    assert first.correct_frac is not None
    assert first.correct_frac > 0.1, "the adapters are merged into their base"


def test_an_evaluation_is_repeatable(started: Path, tmp_path: Path) -> None:
    settings = EvaluationSettings(num_problems=10, num_answers=4)
    config = stage_of("evaluate", NoSettings(), steps=0, start_from=str(started), evaluation=settings)
    for name in ("a", "b"):
        assert run_in(tmp_path / name, config) == ExitCode.YES
    first, second = (read_stage(RunDirectory(tmp_path / name)).accuracy for name in ("a", "b"))
    assert first == second
    assert first is not None
    assert set(first.pass_at_k) == {1, 2, 4}
    assert first.pass_at_k[1].value_frac <= first.pass_at_k[4].value_frac


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"vocab": 16}, "tokens and tiny a vocabulary of 16"), ({"ffn_hidden": 32}, "and this model needs")],
)
def test_weights_and_vocabularies_of_another_model_are_refused(
    started: Path, tmp_path: Path, changes: dict[str, int], words: str
) -> None:
    config = stage_of("sft", SFT, steps=1, start_from=str(started))
    with pytest.raises(ConfigError, match=words):
        run_in(tmp_path / "r", replace(config, shape=SPEC.transformer.model_copy(update=changes)))
