"""Predictions of the stages of reasoning-model training: parts, what they grow with, and the rows of a batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.data.reasoning.settings import TaskSettings
from scalewright.data.reasoning.task import Problem
from scalewright.errors import ConfigError
from scalewright.here.place import place_of
from scalewright.launch.prepare.reason_outlook import (
    SequenceLengths,
    distribution,
    sampled_lengths,
    stage_load,
    update_load,
)
from scalewright.planner.stages.reason_stage import StageLoad, StagePrediction, predict_stage
from scalewright.records.documents import check_schema
from scalewright.records.reasoning import ShardHead, write_shard
from scalewright.records.run_directory import RunDirectory
from scalewright.study.kinds.reason import KIND
from scalewright.workload.layout import parse_layout
from scalewright.workload.named import resolve_model
from scalewright.workload.reasoning.policy_loss import policy_loss
from scalewright.workload.reasoning.role_settings import RoleSettings
from scalewright.workload.reasoning.stage_run import (
    DistillSettings,
    EvaluationSettings,
    GenerateSettings,
    GrpoSettings,
    NoSettings,
    ReasonRun,
    SftSettings,
)

CATALOG = Catalog((packaged_data(),))
LENGTHS = SequenceLengths(prompts=(200, 300, 250, 150), answers=(400, 700, 900, 500), reward_s=1e-3)
SPEC = resolve_model(CATALOG, "qwen2.5-0.5b").with_seq(2048)
SETTINGS: dict[str, Any] = {
    "sft": SftSettings(packs=True),
    "grpo": GrpoSettings(num_prompts=32, num_answers=8, loss=policy_loss("grpo", kl_coef=0.001)),
    "generate": GenerateSettings(num_problems=1024, num_answers=4, shard_problems=256),
    "distill": DistillSettings(mode="data"),
    "evaluate": NoSettings(),
}


def run_of(stage: str, words: str = "dp=1,mbs=4,gbs=64", **changes: Any) -> ReasonRun:
    split = parse_layout(words if stage in ("sft", "grpo", "distill") else "dp=1")
    body: dict[str, Any] = {
        "stage": stage, "model_id": SPEC.id, "shape": SPEC.transformer, "layout": split, "settings": SETTINGS[stage],
        "precision": "bf16", "steps": 0 if stage == "evaluate" else 10, "device": "cuda",
        "evaluation": EvaluationSettings(num_problems=100, num_answers=4),
    }  # fmt: skip
    return ReasonRun(**(body | changes))


def predicted(load: StageLoad, system: str) -> StagePrediction:
    return predict_stage(CATALOG, load, place_of(CATALOG, system))


def on_system(stage: str, system: str = "leonardo", **changes: Any) -> StagePrediction:
    return predicted(stage_load(run_of(stage, **changes), LENGTHS), system)


@pytest.mark.parametrize(
    ("stage", "parts"),
    [
        ("sft", {"training", "data"}),
        ("grpo", {"generation", "reward", "log_probs", "training", "data", "weight_sync"}),
        ("generate", {"generation", "reward"}),
        ("distill", {"training", "data"}),
        ("evaluate", {"evaluation", "reward"}),
    ],
)
def test_a_stage_is_predicted_by_its_parts(stage: str, parts: set[str]) -> None:
    prediction = on_system(stage)
    assert set(prediction.step_parts) == parts
    doc = prediction.document()
    check_schema(doc["schema"], "prediction", where="here")
    assert sum(doc["seconds_by_part"].values()) == pytest.approx(doc["training_time_s"])
    low, high = doc["training_time_interval_s"]
    assert low < doc["training_time_s"] < high
    assert doc["energy_j"] > 0.0
    assert doc["tokens_per_s"] == pytest.approx(doc["num_tokens"] / doc["training_time_s"])
    assert doc["memory_bytes"] > SPEC.num_params


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8", "int4", "int3"])
def test_every_precision_of_the_engine_is_predicted(precision: str) -> None:
    """Weights that are only rounded to few bits take the time of those they are stored as."""
    load = replace(stage_load(run_of("grpo"), LENGTHS), engine_precision=precision)
    generation = predicted(load, "leonardo").step_parts["generation"].time_s
    stored = replace(load, engine_precision="bf16" if precision.startswith("int") else precision)
    assert generation == predicted(stored, "leonardo").step_parts["generation"].time_s > 0.0


def test_twice_the_steps_take_twice_the_time() -> None:
    load = stage_load(run_of("grpo"), LENGTHS)
    once, twice = (predicted(replace(load, num_steps=num), "leonardo") for num in (10, 20))
    assert twice.whole.time_s == pytest.approx(2 * once.whole.time_s)
    assert twice.energy_j == pytest.approx(2 * (once.energy_j or 0.0))


def test_scoring_passes_follow_from_the_loss() -> None:
    """The first update of a step needs no old log-probabilities; a KL term needs those of the reference."""
    one_update = "dp=1,mbs=4,gbs=256"
    free = GrpoSettings(num_prompts=32, num_answers=8, loss=policy_loss("grpo", kl_coef=0.0))
    assert stage_load(run_of("grpo", one_update, settings=free), LENGTHS).num_scorings == 0.0
    assert stage_load(run_of("grpo", settings=free), LENGTHS).num_scorings == 0.75  # the first of four needs none
    both = stage_load(run_of("grpo"), LENGTHS)
    assert both.num_scorings == 1.75
    halved = predicted(replace(both, num_scorings=0.875), "leonardo").step_parts["log_probs"].time_s
    assert predicted(both, "leonardo").step_parts["log_probs"].time_s == pytest.approx(2 * halved)


def test_a_token_budget_spares_the_tail_and_trains_the_same() -> None:
    """Lengths with a mean of 200 and a longest of 1,700; the budget is what a step writes that waits for all."""
    lengths = SequenceLengths(prompts=(64,), answers=(*[100] * 15, 1700))
    free = GrpoSettings(num_prompts=32, num_answers=8)
    all_done, budget, stale = (
        stage_load(run_of("grpo", settings=replace(free, **changes)), lengths)  # type: ignore[arg-type]
        for changes in ({}, {"token_budget": 256 * 200}, {"token_budget": 256 * 200, "stale_keys": True})
    )
    parts = [predicted(load, "leonardo").step_parts for load in (all_done, budget, stale)]
    generation = [part["generation"].time_s for part in parts]
    assert generation[2] < 0.6 * generation[0]
    assert generation[2] < generation[1], "long prefixes are read again"
    assert parts[1]["training"].time_s == pytest.approx(parts[0]["training"].time_s, rel=0.05)
    assert (budget.num_samples, budget.num_tokens) == (all_done.num_samples, all_done.num_tokens)
    small = stage_load(run_of("grpo", settings=replace(free, token_budget=4096)), lengths)
    assert small.num_updates == 1, "fewer answers than gbs are one update"


def test_a_forward_pass_is_a_third_of_an_update_or_less() -> None:
    parts = on_system("grpo").step_parts
    assert 0.2 < parts["log_probs"].time_s / 1.75 / parts["training"].time_s < 0.5


def test_weight_sync_grows_with_the_parameters_and_stays_small() -> None:
    step = on_system("grpo")
    large = resolve_model(CATALOG, "qwen2.5-3b").with_seq(2048)
    larger = on_system("grpo", model_id=large.id, shape=large.transformer)
    ratio = larger.step_parts["weight_sync"].time_s / step.step_parts["weight_sync"].time_s
    assert ratio == pytest.approx(large.num_params / SPEC.num_params, rel=0.05)
    assert step.step_parts["weight_sync"].time_s < 0.01 * step.step.time_s


def test_packed_rows_hold_the_same_tokens_in_fewer() -> None:
    padded, packed = (update_load(run_of("sft"), LENGTHS, packs=packs) for packs in (False, True))
    tokens = sum(map(sum, LENGTHS.update(64))) - 64
    for update in (padded, packed):
        assert update.num_tokens >= tokens
        assert update.num_micro_batches * update.num_rows * update.row_len == pytest.approx(update.num_tokens, rel=0.1)
    assert packed.num_tokens < 1.2 * tokens
    assert padded.scored_frac == pytest.approx(sum(a for _, a in LENGTHS.update(64)) / padded.num_tokens)


def test_ranks_share_an_update() -> None:
    alone = update_load(run_of("sft"), LENGTHS, packs=False)
    shared = update_load(run_of("sft", "dp=4,mbs=4,gbs=64"), LENGTHS, packs=False)
    assert shared.num_sequences == 16
    assert alone.num_tokens / 4 <= shared.num_tokens < alone.num_tokens / 3  # fewer sequences are padded more


def test_lengths_of_a_sample_become_a_distribution() -> None:
    spread = distribution((10, 20, 30, 40), longest=64)
    assert spread.mean == pytest.approx(25.0, rel=0.02)
    assert spread.longest == 64
    assert distribution((20, 20, 20), longest=64).is_fixed


def test_copies_of_the_engine_share_the_shards() -> None:
    alone = stage_load(run_of("generate"), LENGTHS)
    shared = stage_load(run_of("generate", layout=parse_layout("dp=4")), LENGTHS)
    assert (alone.num_steps, shared.num_steps) == (4, 1)
    assert predicted(shared, "leonardo").whole.time_s < 0.4 * predicted(alone, "leonardo").whole.time_s


def test_a_stage_is_prepared_with_its_prediction(tmp_path: Path) -> None:
    """Model and task of the default: the document is what the run directory gets, and a sentence for people."""
    options = {"stage": "grpo", "device": "cpu", "this_system": "leonardo", "steps": 5}
    execution = KIND.execution(CATALOG, options, path=tmp_path / "run", where="here")
    assert execution.prediction is not None
    assert execution.prediction["stage"] == "grpo"
    assert execution.forecast.startswith("predicted ")
    assert execution.machine is not None
    assert execution.machine["memory_bytes_per_s"] > 0
    outcome = KIND.stored_prediction(execution.prediction)
    number = outcome.numbers["training_time_s"]
    assert number.low is not None
    assert number.low < number.value
    assert sum(outcome.parts.values()) == pytest.approx(1.0)


def test_a_stage_of_a_catalogued_system_is_predicted_in_a_study() -> None:
    outcome = KIND.predict(CATALOG, {"stage": "sft", "system": "leonardo", "device": "cpu"}, where="here")
    assert outcome.problem == ""
    assert outcome.numbers["training_time_s"].value > 0
    assert not KIND.predict(CATALOG, {"stage": "sft", "device": "cpu"}, where="here").numbers  # when it is run


class PromptsOnly:
    """A task of a user's prompts, without traces."""

    max_response = 64

    def problems(self, split: str, num: int, *, seed: int) -> list[Problem]:
        del split, seed
        return [Problem(id=str(number), prompt=(1,) * 5) for number in range(num)]

    def cold_start(self, num: int, *, seed: int) -> list[Any]:
        raise ConfigError(f"no traces ({num}, {seed})")


def test_reinforcement_learning_on_prompts_needs_no_traces() -> None:
    task: Any = PromptsOnly()
    own = TaskSettings(kind="files", prompts="p.jsonl", tokenizer="t")
    lengths = sampled_lengths(run_of("grpo", task=own), task)
    assert set(lengths.answers) == {64}
    assert "no traces to take lengths from" in lengths.notes[0]
    with pytest.raises(ConfigError, match="no traces"):
        sampled_lengths(run_of("sft", task=own), task)


def test_a_generation_that_kept_nothing_is_refused(tmp_path: Path) -> None:
    write_shard(RunDirectory(tmp_path), 0, [], ShardHead(num_sampled=8, num_kept=0))
    with pytest.raises(ConfigError, match="kept no answer"):
        sampled_lengths(run_of("sft", data_from=str(tmp_path)), PromptsOnly())  # type: ignore[arg-type]


def beside(roles: RoleSettings) -> StagePrediction:
    return on_system("grpo", settings=replace(SETTINGS["grpo"], roles=roles))


def test_engines_beside_the_trainer_are_waited_for_or_hidden() -> None:
    """One engine on a rank of its own: synchronous steps are the sum, those with overlap the longer of both."""
    alone = on_system("grpo").step_parts
    engine_s = alone["generation"].time_s + alone["reward"].time_s
    own_s = sum(part.time_s for name, part in alone.items() if name not in ("generation", "reward"))
    sync, ahead = (beside(RoleSettings(engine_ranks=(1,), staleness=bound)) for bound in (0, 1))
    assert "generation" not in sync.step_parts
    assert sync.step.time_s == pytest.approx(engine_s + own_s)
    assert ahead.step.time_s == pytest.approx(max(engine_s, own_s))
    assert sync.step_parts["idle"].time_s == pytest.approx(engine_s)


def test_more_engines_shorten_the_wait() -> None:
    one, four = (beside(RoleSettings(engine_ranks=(1,) * num)).step_parts["idle"].time_s for num in (1, 4))
    assert one / 4 <= four < one
