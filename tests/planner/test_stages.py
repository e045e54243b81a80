"""Predictions of generation and of an RL step: published step times, smallest machines, documents and pages."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Literal

import pytest
from rich.console import Console

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.energy import Facility
from scalewright.costs.machine import Machine, machine_from_hardware, machine_from_system
from scalewright.errors import ConfigError, NotExpressedError
from scalewright.planner.answer import Answer, answer
from scalewright.planner.energy_use import footprint
from scalewright.planner.generation import Generation
from scalewright.planner.question import Question
from scalewright.planner.stages.minimum_gpus import MinimumGpus, minimum_gpus
from scalewright.report.planner.answer import print_answer, print_explanation
from scalewright.report.planner.stages import minimum_table
from scalewright.workload.layout import Layout, parse_layout
from scalewright.workload.model import ModelSpec, from_catalog
from scalewright.workload.precision import RECIPES
from scalewright.workload.rl import RlStep
from scalewright.workload.training import training_mode

CATALOG = Catalog((packaged_data(),))
STACK = CATALOG.stack("megatron-core")
BF16 = RECIPES["bf16"]


def model(name: str) -> ModelSpec:
    return from_catalog(CATALOG.model(name))


def h100s() -> Machine:
    return machine_from_hardware(
        CATALOG, gpu="h100-sxm", gpus_per_node=8, scale_up_bytes_per_s=None, network_bytes_per_s_per_gpu=50e9
    )


def generation(*, spec: ModelSpec | None = None, layout: str = "dp=2,gbs=64", **lengths: int) -> Answer:
    return answer(
        Question(
            spec=spec or model("llama3-8b"), machine=h100s(), stack=STACK, recipe=BF16, layout=parse_layout(layout),
            stage=Generation(**({"prompt_len": 512, "response_len": 256} | lengths)),
        )
    )  # fmt: skip


def rl(
    name: str, layout: Layout, *, machine: Machine | None = None, mode: str = "offload", **changed: Any
) -> Answer:  # fmt: skip
    step: dict[str, Any] = {
        "num_prompts": 64, "num_responses": 32, "prompt_len": 150, "response_len": 910, "longest_len": 3946,
    }  # fmt: skip
    return answer(
        Question(
            spec=model(name), machine=machine or h100s(), stack=STACK, recipe=BF16, layout=layout,
            mode=training_mode(mode), stage=RlStep(**(step | changed)),
        )
    )  # fmt: skip


SMALL = "pp=2,dp=8,mbs=1,gbs=512,zero=1"


def test_nothing_is_faster_than_physics() -> None:
    for predicted in (generation(), generation(layout="dp=2,gbs=1"), generation(layout="tp=2,gbs=2048")):
        assert predicted.bound_s < float(predicted.time.total)
    step = rl("llama3-8b", parse_layout(SMALL))
    assert step.rl.rollout.bound_s < step.bound_s < float(step.time.total)


def smallest(
    name: str, stage: Literal["sft", "rl", "generate"], partition: str, *, mode: Any = "full", seq: int = 1536,
    bounded: bool = True,
) -> MinimumGpus:  # fmt: skip
    machine = machine_from_system(CATALOG, "perlmutter", partition_name=partition)
    return minimum_gpus(
        spec=model(name), machine=machine if bounded else replace(machine, host_memory_bytes=None),
        stack=CATALOG.stack("eager"), recipe=BF16, stage_name=stage, seq=seq, mode=mode,
    )  # fmt: skip


# HPC-R1 on Perlmutter (A100 40 and 80 GB). The paper names the count, not the mode or the part: this is how they arise.
@pytest.mark.parametrize(
    ("name", "stage", "mode", "partition", "published"),
    [
        ("llama3-70b", "sft", "lora", "gpu-80", 4),
        ("llama3-70b", "rl", "full", "gpu-40", 64),
        ("llama3-70b", "generate", "full", "gpu-40", 8),
        ("deepseek-v3", "generate", "full", "gpu-80", 32),
        ("llama3.2-1b", "sft", "full", "gpu-80", 1),
        ("llama3.2-3b", "sft", "full", "gpu-80", 1),
    ],
)
def test_hpc_r1s_minimum_in_a_named_mode(name: str, stage: Any, mode: Any, partition: str, published: int) -> None:
    minimum = smallest(name, stage, partition, mode=mode)
    assert minimum.num_gpus == published
    assert minimum.assumption


def test_four_devices_for_70b_need_adapters() -> None:
    modes = ("full", "offload", "lora")
    counts = {mode: smallest("llama3-70b", "sft", "gpu-80", mode=mode, bounded=False).num_gpus for mode in modes}
    assert counts["lora"] == 4
    assert counts["full"] > counts["offload"]
    # 16 bytes a parameter on the hosts: nodes of 256 GB take away what the devices gain
    assert smallest("llama3-70b", "sft", "gpu-80", mode="offload").num_gpus > counts["offload"]


def test_a_stack_that_does_not_shard_weights_splits_them() -> None:
    """Megatron-Core stops at ZeRO-1; its fewest devices hold parts of tensors and of the pipeline."""
    machine = machine_from_system(CATALOG, "perlmutter", partition_name="gpu-80")
    counts = [
        minimum_gpus(
            spec=model("llama3-70b"),
            machine=machine,
            stack=CATALOG.stack(name),
            recipe=BF16,
            stage_name="sft",
            seq=1536,
        ).num_gpus
        for name in ("megatron-core", "eager")
    ]
    assert CATALOG.stack("megatron-core").max_zero < 3
    assert counts[1] <= counts[0] <= 4 * counts[1]


def test_host_memory_can_be_what_decides() -> None:
    bounded = smallest("llama3-70b", "rl", "gpu-80", mode="offload")
    free = smallest("llama3-70b", "rl", "gpu-80", mode="offload", bounded=False)
    assert bounded.num_gpus > free.num_gpus


def test_a_model_too_large_is_refused_with_its_name() -> None:
    with pytest.raises(ConfigError, match=r"ring-1t does not fit 4 x a100"):
        minimum_gpus(
            spec=model("ring-1t"), machine=machine_from_system(CATALOG, "perlmutter"), stack=STACK, recipe=BF16,
            stage_name="sft", seq=2048, max_gpus=4,
        )  # fmt: skip


def test_copies_share_the_prompts() -> None:
    one, two = generation(layout="gbs=32"), generation(layout="dp=2,gbs=64")
    assert float(one.time.total) == pytest.approx(float(two.time.total))
    assert two.rate_per_s == pytest.approx(2 * one.rate_per_s)


def test_prompts_that_do_not_fit_take_turns() -> None:
    answer = generation(layout="gbs=4096", prompt_len=4096, response_len=1024)
    assert answer.generation.num_alive == answer.generation.num_fit < 4096
    assert any("take turns" in note for note in answer.warnings)


def test_one_long_answer_holds_everybody() -> None:
    even, uneven = generation(), generation(longest_len=1024)
    assert float(uneven.time.total) > float(even.time.total)
    assert uneven.rate_per_s < even.rate_per_s


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"layout": "tp=3"}, "does not divide 32 attention heads"),
        ({"layout": "cp=2"}, "split by tp, pp, ep and dp"),
        ({"prompt_len": 0}, "must be 1 or more"),
    ],
)
def test_impossible_questions_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        generation(**changed)


def test_models_without_tokens_are_refused() -> None:
    with pytest.raises(NotExpressedError):
        generation(spec=model("resnet-50"))


def test_models_that_write_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="generates none"):
        generation(spec=model("bert-large"))


def test_a_generator_takes_whole_copies_of_the_devices() -> None:
    with pytest.raises(ConfigError, match="not whole copies"):
        rl("llama3-8b", parse_layout(SMALL), rollout_tp=3)


def test_mini_batches_must_be_whole() -> None:
    with pytest.raises(ConfigError, match="not whole mini-batches"):
        rl("llama3-8b", parse_layout(SMALL), num_prompts=10)


def test_parts_of_a_step_add_up_and_a_reward_is_charged_as_stated() -> None:
    free, paid = (rl("llama3-8b", parse_layout(SMALL), reward_s=s) for s in (0.0, 12.5))
    names = [p.name for p in paid.time.parts]
    scoring = ["old_log_probs", "reference_log_probs"]
    assert names == ["rollout", "reward", *scoring, "update", "state_move", "weight_sync", "controller"]
    assert float(paid.time.total) - float(free.time.total) == pytest.approx(12.5)


def test_without_a_reference_model_it_neither_scores_nor_takes_memory() -> None:
    without = rl("llama3-8b", parse_layout(SMALL), has_reference=False, mode="full")
    with_it = rl("llama3-8b", parse_layout(SMALL), has_reference=True, mode="full", keeps_state=True)
    assert float(without.time.part("reference_log_probs").total) == 0.0
    assert float(without.rl.memory_update.part("reference").total) == 0.0
    assert float(with_it.rl.memory_rollout.part("reference").total) > 0.0


def test_devices_that_take_turns_leave_their_memory_to_the_cache() -> None:
    kept = rl("llama3-8b", parse_layout(SMALL), mode="full", keeps_state=True)
    released = rl("llama3-8b", parse_layout(SMALL), mode="full")
    assert float(kept.time.part("state_move").total) == 0.0 < float(released.time.part("state_move").total)
    assert float(released.rl.memory_rollout.part("held").total) == 0.0
    assert released.rl.rollout.generation.num_fit > kept.rl.rollout.generation.num_fit
    assert released.host_memory is not None
    assert float(released.host_memory.part("released_state").total) > 0.0


def test_a_generator_of_its_own_counts_its_devices_and_hides_behind_training() -> None:
    together = rl("llama3-8b", parse_layout(SMALL), mode="full")
    apart = rl("llama3-8b", parse_layout(SMALL), mode="full", rollout_gpus=16, lag=1)
    assert (together.question.num_gpus, apart.question.num_gpus) == (16, 32)
    rollout = apart.rl.part("rollout")
    assert rollout.hidden_s > 0.0
    assert float(apart.time.part("rollout").total) == pytest.approx(rollout.whole_s - rollout.hidden_s)
    assert apart.time_s < together.time_s
    assert apart.document()["parts"][0]["behind"] == "training"


def test_a_what_if_changes_the_generator_beside_the_layout() -> None:
    step = rl("llama3-8b", parse_layout(SMALL), mode="full", rollout_gpus=16)
    for text in ("lag=1", "gen_tp=2", "sync=peers", "ref=0", "dp=16,lag=1"):
        change = step.what_if(text)
        assert change.after.time_s != step.time_s
    with pytest.raises(ConfigError, match="unknown part 'lag'"):
        generation().what_if("lag=1")


LONG_TAIL = {"response_len": 1000, "longest_len": 8000, "cv": 1.5}


def test_a_token_budget_gains_where_answers_have_a_tail() -> None:
    waits = rl("llama3-8b", parse_layout(SMALL), mode="full", **LONG_TAIL)
    step = waits.question.stage
    assert isinstance(step, RlStep)
    bounded = waits.what_if(f"budget={step.usual_budget},retention=6").after
    figures = bounded.rl
    assert figures.budget is not None
    assert figures.step_gain == pytest.approx(bounded.rate_per_s / waits.rate_per_s)
    assert 1.0 < figures.step_gain < figures.budget.gain.ratio
    per_token = [one.rl.part("rollout").whole_s / num for one, num in (
        (waits, step.num_sequences * step.response_len), (bounded, figures.budget.simulated.num_trained))]  # fmt: skip
    assert per_token[0] / per_token[1] == pytest.approx(figures.budget.gain.ratio, rel=0.05)
    assert bounded.bound_s < bounded.time_s
    body = bounded.document()["token_budget"]
    assert body["num_trained_tokens"] + body["num_wasted_tokens"] == pytest.approx(body["num_decoded_tokens"], rel=0.1)
    assert bounded.what_if("budget=0").after.time_s == pytest.approx(waits.time_s)
    assert bounded.question.id != waits.question.id


def test_a_budget_beside_a_generator_of_its_own_shortens_what_is_hidden() -> None:
    waits = rl("llama3-8b", parse_layout(SMALL), mode="full", rollout_gpus=16, lag=1, **LONG_TAIL)
    bounded = waits.what_if("budget=2000000,retention=6").after
    assert bounded.question.stage.policy == "1-step off, token budget"  # type: ignore[union-attr]
    assert bounded.rl.budget is not None
    assert bounded.rl.budget.simulated.mean_staleness > 1.0


def test_too_little_host_memory_does_not_fit() -> None:
    answer = rl("llama3-8b", parse_layout(SMALL), machine=replace(h100s(), host_memory_bytes=64e9))
    assert not answer.fits
    assert any("host memory is too small" in note for note in answer.warnings)


@pytest.mark.parametrize("kind", ["generate", "rl"])
def test_documents_are_predictions_and_json(kind: str) -> None:
    answer = generation() if kind == "generate" else rl("llama3-8b", parse_layout(SMALL))
    body = json.loads(json.dumps(answer.document()))
    assert body["schema"] == "scalewright.prediction/1"
    assert body["stage"] == kind
    assert body["fits"] is True
    assert body["step_time_s"] == pytest.approx(body["time"]["total_s"])
    assert {"num_gpus", "num_nodes", "memory_bytes", "memory", "warnings", "input", "confidence"} <= set(body)


def test_pages_are_80_columns_and_name_the_mode() -> None:
    console = Console(width=80, highlight=False, record=True, no_color=True, file=None, quiet=False)
    with console.capture() as captured:
        for prediction in (generation(), rl("llama3-8b", parse_layout(SMALL))):
            print_answer(console, prediction)
            print_explanation(console, prediction, CATALOG, whole=True)
        console.print(minimum_table([smallest("llama3-70b", "sft", "gpu-80", mode="lora")]))
    text = captured.get()
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "mode offload" in text
    assert "Equation" in text
    assert "frozen 16-bit weights" in " ".join(text.split())


def test_footprint_of_a_step_is_charged() -> None:
    answer = rl("llama3-8b", parse_layout(SMALL))
    facility = Facility(
        pue_frac=1.2, kgco2e_per_j=CATALOG.grid("france").carbon_intensity.value, usd_per_s_per_gpu=3 / 3600
    )
    arguments: dict[str, Any] = {
        "machine": h100s(), "recipe": BF16, "facility": facility, "time_s": float(answer.time.total), "num_gpus": 16,
        "num_tokens": 2048 * 1060,
    }  # fmt: skip
    idle, busy = (footprint(hardware_flop=work, **arguments) for work in (0.0, 4e17))
    assert float(busy.energy.total) > float(idle.energy.total) > 0
    assert busy.cost_usd == pytest.approx(16 * arguments["time_s"] * 3 / 3600)
    assert busy.num_tokens_per_j * busy.energy_j_per_token == pytest.approx(1.0)
