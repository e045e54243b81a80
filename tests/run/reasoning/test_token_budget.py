"""GRPO with a token budget: answers go on over steps, and a stopped stage goes the same way."""

from __future__ import annotations

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
from stage_cases import CPU, curve_of, run_in, stage_of

from scalewright.data.reasoning.countdown import CountdownTask
from scalewright.data.reasoning.settings import TaskSettings
from scalewright.data.reasoning.task import Problem, Score
from scalewright.errors import ConfigError
from scalewright.records.hybrid import HybridStep, read_hybrid
from scalewright.records.reasoning import read_stage
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import ExitCode
from scalewright.run.device import join_group
from scalewright.run.generate.open import checkpoint_weights
from scalewright.run.reasoning.batches import TokenSequence, pack_sequences
from scalewright.run.world import World
from scalewright.workload.language_run import OptimizerSettings
from scalewright.workload.model import from_shape
from scalewright.workload.reasoning.policy_loss import policy_loss
from scalewright.workload.reasoning.stage_run import EvaluationSettings, GrpoSettings, ReasonRun, SftSettings

TASK = TaskSettings(numbers=2, largest=11, values=24, operators="+-", attempts=6)
SHAPE = from_shape("layers=1,hidden=32,heads=2,vocab=48,seq=48").transformer
NO_EVALUATION = EvaluationSettings(num_problems=0)
STEPS = 6


@pytest.fixture(scope="module", autouse=True)
def one_rank() -> Iterator[None]:
    torch.set_num_threads(1)
    join_group(World.from_environment({}, host="here"), CPU)
    yield
    dist.destroy_process_group()


def with_task(config: ReasonRun) -> ReasonRun:
    return replace(config, task=TASK, shape=SHAPE)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that writes answers of several lengths, some of them right."""
    path = tmp_path_factory.mktemp("started") / "sft"
    config = stage_of(
        "sft", SftSettings(num_traces=512, packs=False), steps=250, gbs=32, evaluation=NO_EVALUATION,
        optimizer=OptimizerSettings(learning_rate=1e-2, warmup_steps=5),
    )  # fmt: skip
    assert run_in(path, with_task(config)) == ExitCode.YES
    return path


def grpo(start: Path, *, steps: int = STEPS, loss: str = "grpo", **others: Any) -> ReasonRun:
    names = ("token_budget", "retention", "groups", "old_tokens", "stale_keys", "num_prompts", "num_epochs")
    chosen = {"num_prompts": 8, "token_budget": 300} | {key: others.pop(key) for key in names if key in others}
    bounds = others.pop("bounds", {})
    settings = GrpoSettings(num_answers=4, loss=policy_loss(loss, **bounds), **chosen)
    given = {"evaluation": NO_EVALUATION, "gbs": 16, **others}
    return with_task(stage_of("grpo", settings, steps=steps, start_from=str(start), **given))


def steps_of(path: Path) -> list[HybridStep]:
    """The iterations without times."""
    record = read_hybrid(RunDirectory(path))
    assert record is not None
    return [replace(one, wall_s=0.0, rollout_s=0.0, train_s=0.0, sync_s=0.0, reward_s=0.0) for one in record.steps]


def weights_of(path: Path) -> dict[str, torch.Tensor]:
    folder = RunDirectory(path).last_checkpoint()
    assert folder is not None
    return dict(checkpoint_weights(folder, device=CPU))


def test_a_step_writes_its_budget_and_carries_the_rest(started: Path, tmp_path: Path) -> None:
    assert run_in(tmp_path / "r", grpo(started)) == ExitCode.YES
    steps, record = steps_of(tmp_path / "r"), read_hybrid(RunDirectory(tmp_path / "r"))
    assert record is not None
    assert (record.settings.token_budget, record.settings.retention, record.settings.groups) == (300, 2, "whole")
    assert all(300 <= one.num_decoded_tokens < 300 + 32 for one in steps)
    assert all(sum(one.carried_by_cuts.values()) > 0 for one in steps)
    assert max(one.staleness_max for one in steps) >= 1
    totals = [sum(getattr(one, f"num_{name}_tokens") for one in steps) for name in ("decoded", "trained", "wasted")]
    assert totals[0] > totals[1] + totals[2] > 0.5 * totals[0]
    curve = curve_of(tmp_path / "r")
    assert [point.num_tokens for point in curve] == [one.num_trained_tokens for one in steps]
    assert any(point.kl_engines is not None and point.kl_engines > 1e-6 for point in curve), "older weights wrote some"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"groups": "parts", "old_tokens": "mask", "loss": "dapo"},
        {"retention": 1, "loss": "c3po", "bounds": {"correction": "none"}, "num_epochs": 2},
    ],
    ids=["whole", "parts", "c3po"],
)
def test_a_stopped_stage_goes_the_same_way(started: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    config = grpo(started, evaluation=EvaluationSettings(num_problems=8, every=2), **options)
    assert run_in(tmp_path / "whole", config) == ExitCode.YES
    assert run_in(tmp_path / "cut", config, stop_after=3) == ExitCode.REQUEUE
    assert run_in(tmp_path / "cut", config) == ExitCode.YES
    assert curve_of(tmp_path / "cut") == curve_of(tmp_path / "whole")
    assert steps_of(tmp_path / "cut") == steps_of(tmp_path / "whole")
    for name, values in weights_of(tmp_path / "whole").items():
        assert torch.equal(values, weights_of(tmp_path / "cut")[name]), name


def test_a_bad_reward_leaves_the_pool_of_the_step_before(
    started: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    honest = CountdownTask.score_many

    def failing(task: CountdownTask, pairs: list[tuple[Problem, Any]]) -> list[Score]:
        calls.append(len(pairs))
        if len(calls) == 4:
            raise ConfigError("the reward of answer 1 is nan: return a finite number")
        return honest(task, pairs)

    monkeypatch.setattr(CountdownTask, "score_many", failing)
    with pytest.raises(ConfigError, match="the reward of answer 1 is nan"):
        run_in(tmp_path / "r", grpo(started))
    monkeypatch.undo()
    assert run_in(tmp_path / "r", grpo(started)) == ExitCode.YES
    assert run_in(tmp_path / "whole", grpo(started)) == ExitCode.YES
    assert curve_of(tmp_path / "r") == curve_of(tmp_path / "whole")


def test_answers_do_not_depend_on_where_they_are_cut(started: Path, tmp_path: Path) -> None:
    """With weights that do not change, every budget trains on the same answers, whatever it cuts."""
    trained: list[dict[str, Any]] = []
    for name, budget in (("short", 150), ("long", 900)):
        calls: dict[str, Any] = {}
        honest = CountdownTask.score_many

        def noting(task: CountdownTask, pairs: Any, calls: dict[str, Any] = calls, honest: Any = honest) -> list[Score]:
            pairs = list(pairs)
            for problem, tokens in pairs:
                calls.setdefault(problem.id, set()).add(tuple(tokens))
            scores: list[Score] = honest(task, pairs)
            return scores

        config = grpo(
            started, steps=6 if budget == 900 else 24, token_budget=budget, retention=50,
            optimizer=OptimizerSettings(learning_rate=1e-30, warmup_steps=0),
        )  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CountdownTask, "score_many", noting)
            assert run_in(tmp_path / name, config) == ExitCode.YES
        trained.append(calls)
    both = trained[0].keys() & trained[1].keys()
    assert len(both) > 10
    assert all(trained[0][problem] == trained[1][problem] for problem in both)
    assert sum(map(sum, (one.carried_by_cuts.values() for one in steps_of(tmp_path / "short")))) > 40


def test_masked_tokens_have_no_part_in_the_loss() -> None:
    sequences = [TokenSequence((1, 2), (3, 4, 5), num_skipped=2), TokenSequence((1,), (3, 4), num_skipped=2)]
    (batch,) = pack_sequences(sequences, row_tokens=8, num_rows=2, packing="padded", device=CPU)
    by_index = dict(zip(batch.indices, batch.mask_NR.tolist(), strict=True))
    assert by_index[0] == [False, False, True]
    assert by_index[1][:2] == [False, False]
    assert sum(batch.num_counted) == 1


@pytest.mark.parametrize("old_tokens", ["train", "mask"])
def test_old_tokens_are_trained_or_masked(started: Path, tmp_path: Path, old_tokens: str) -> None:
    assert run_in(tmp_path / "r", grpo(started, old_tokens=old_tokens)) == ExitCode.YES
    divergence = [point.kl_engines for point in curve_of(tmp_path / "r") if point.kl_engines is not None]
    assert divergence
    assert (max(divergence) > 1e-5) == (old_tokens == "train"), "only tokens of older weights differ from the trainer"


def test_stale_keys_save_the_reading_of_prefixes(started: Path, tmp_path: Path) -> None:
    flop = {}
    for name, is_stale in (("reread", False), ("stale", True)):
        assert run_in(tmp_path / name, grpo(started, stale_keys=is_stale)) == ExitCode.YES
        work = {one.name: one for one in read_stage(RunDirectory(tmp_path / name)).roofline}
        flop[name] = work["prefill"].flop
    assert flop["stale"] < 0.8 * flop["reread"]


def test_a_record_says_which_answers_are_given_up(started: Path, tmp_path: Path) -> None:
    assert run_in(tmp_path / "r", grpo(started, steps=1)) == ExitCode.YES
    notes = read_stage(RunDirectory(tmp_path / "r")).notes
    assert any("answers longer than about 18 tokens are given up" in note for note in notes), notes
