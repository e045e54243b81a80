"""What limits a step, and what one change would give: the same numbers a user gets by asking for the change."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.machine import machine_from_hardware, machine_from_system
from scalewright.planner.answer import Answer, Change, answer
from scalewright.planner.changes import changes
from scalewright.planner.limits import REASONS
from scalewright.planner.question import Question, resolve_recipe, resolve_stack
from scalewright.planner.question import ask as asked
from scalewright.workload.layout import parse_layout
from scalewright.workload.model import from_catalog, from_shape

Cli = Callable[..., subprocess.CompletedProcess[str]]
CATALOG = Catalog((packaged_data(),))
DENSE = ("gpt3-175b", "selene", "tp=8,pp=8,dp=8,mbs=1,gbs=512,recompute=full")
EXPERTS = ("deepseek-v3", "generic-h100", "pp=16,ep=64,dp=128,gbs=4096,mbs=1,zero=1,recompute=selective")
SMALL = ("gpt2-tiny", "laptop", "mbs=1")
SHARDED = ("llama3-8b", "generic-h100", "dp=64,mbs=2,gbs=256,zero=3,recompute=full")


def ask(model: str, system: str, layout: str, *, stack: str = "auto") -> Answer:
    machine, split = machine_from_system(CATALOG, system), parse_layout(layout)
    spec = from_shape(model) if "=" in model else from_catalog(CATALOG.model(model))
    recipe, software = resolve_recipe("auto", machine), resolve_stack(stack, CATALOG, split)
    return answer(Question(spec=spec, machine=machine, layout=split, recipe=recipe, stack=software))


def named(prediction: Answer) -> dict[str, Change]:
    return {change.name: change for change in changes(prediction, CATALOG)}


@pytest.mark.parametrize("case", [DENSE, EXPERTS, SMALL, SHARDED], ids=lambda c: c[0])
def test_limits_are_the_whole_step_largest_first(case: tuple[str, str, str]) -> None:
    prediction = ask(*case)
    limits = prediction.limits
    assert sum(limit.share_frac for limit in limits) == pytest.approx(1.0)
    assert sum(limit.time_s for limit in limits) == pytest.approx(prediction.time_s)
    assert [limit.share_frac for limit in limits] == sorted((limit.share_frac for limit in limits), reverse=True)


@pytest.mark.parametrize("case", [DENSE, EXPERTS, SMALL, SHARDED], ids=lambda c: c[0])
def test_every_term_of_a_step_has_a_reason_of_its_own(case: tuple[str, str, str]) -> None:
    for limit in ask(*case).limits:
        assert limit.name in REASONS
        assert limit.reason
        assert "\n" not in limit.reason


def test_reasons_name_the_knob() -> None:
    reasons = {limit.name: limit.reason for limit in ask(*DENSE).limits}
    assert "vpp" in reasons["pipeline_bubble"]
    assert "64 micro-batches" in reasons["pipeline_bubble"]
    assert "tp=8" in reasons["tensor_parallel"]
    assert "64 nodes" in reasons["stragglers"]
    assert "recompute=full" in reasons["recompute"]
    assert "zero=1" in reasons["optimizer"]


@pytest.mark.parametrize("case", [DENSE, EXPERTS, SMALL, SHARDED], ids=lambda c: c[0])
def test_changes_are_sorted_and_each_does_something(case: tuple[str, str, str]) -> None:
    prediction = ask(*case)
    before = prediction.time_s
    suggested = changes(prediction, CATALOG)
    assert suggested
    assert [c.after.time_s for c in suggested] == sorted(c.after.time_s for c in suggested)
    assert len({c.name for c in suggested}) == len(suggested)
    for change in suggested:
        assert change.time_ratio_frac == pytest.approx(change.after.time_s / before)
        assert change.gain_frac == pytest.approx(1 - change.time_ratio_frac)
        assert sum(seconds for _, seconds in change.terms) == pytest.approx(change.after.time_s - before)
        assert change.after.question.num_gpus == prediction.question.num_gpus
        assert change.after.question.layout.gbs == prediction.question.layout.gbs
        assert change.after.id != prediction.id


def test_changes_of_a_dense_model_are_these() -> None:
    suggested = named(ask(*DENSE))
    assert {
        "micro-batch mbs=2",
        "recompute=operators",
        "interleave vpp=2",
        "tp=4, dp=16",
        "tp=16, dp=4",
        "zero=1",
        "sequence parallel sp=1",
        "transport rdma-host",
        "transport ipoib",
        "stack compiled",
        "stack megatron-bridge",
    } <= set(suggested)
    assert not {"stack eager", "zero=2", "zero=3"} & set(suggested), "what a stack cannot do is not offered"
    assert "recompute=none" not in suggested, "one level at a time"
    assert not suggested["tp=4, dp=16"].after.fits


def test_what_does_not_divide_or_does_not_matter_is_left_out() -> None:
    suggested = named(ask(*SMALL))
    assert not [
        name for name in suggested if name.startswith(("micro-batch", "tp=", "interleave", "transport", "zero"))
    ]
    assert "sequence parallel sp=1" not in suggested
    assert {"recompute=selective", "stack compiled"} <= set(suggested)


def test_sequence_parallel_ends_where_tensor_parallel_does() -> None:
    half = named(ask("gpt3-6.7b", "selene", "tp=2,dp=4,gbs=8,sp=1"))["tp=1, dp=8"].after.question.layout
    assert (half.tp, half.sp) == (1, False)


def test_odd_heads_are_aligned_at_the_same_width() -> None:
    prediction = ask("layers=24,hidden=2400,heads=24,head_dim=100", "selene", "tp=2,dp=4,gbs=8", stack="eager-unfused")
    change = next(c for c in changes(prediction, CATALOG) if " heads of " in c.name)
    shape = change.after.question.spec.transformer
    assert shape.head_dim % 8 == 0
    assert shape.heads * shape.head_dim == 2400
    assert shape.kv_heads == shape.heads
    assert change.gain_frac > 0
    assert not [name for name in named(ask(*DENSE)) if " heads of " in name]


def test_machine_of_no_catalogue_has_no_other_transports() -> None:
    machine = machine_from_hardware(
        CATALOG, gpu="a100-sxm-80gb", gpus_per_node=8, scale_up_bytes_per_s=None, network_bytes_per_s_per_gpu=25e9
    )
    p = ask(*DENSE)
    other = answer(replace(p.question, machine=machine))
    assert not [name for name in named(other) if name.startswith("transport")]


@pytest.mark.parametrize(
    ("case", "name"),
    [
        (DENSE, "recompute=operators"),
        (DENSE, "tp=4, dp=16"),
        (DENSE, "transport ipoib"),
        (SHARDED, "stack compiled"),
        (EXPERTS, "micro-batch mbs=2"),
    ],
    ids=lambda v: v if isinstance(v, str) else v[0],
)
def test_change_asked_for_on_the_command_line_gives_the_same(cli: Cli, case: tuple[str, str, str], name: str) -> None:
    after = named(ask(*case))[name].after
    layout, stack, transport = str(after.question.layout), after.question.stack.id, after.question.machine.transport
    args = ["--model", case[0], "--system", case[1], "--layout", layout, "--stack", stack]
    result = cli("predict", *args, "--transport", transport, "--json")
    doc = json.loads(result.stdout)
    assert doc["step_time_s"] == after.time_s
    assert doc["memory_bytes"] == after.memory_bytes
    assert doc["fits"] == after.fits
    assert result.returncode == (0 if after.fits else 1)


def test_no_change_touches_the_prediction_it_starts_from() -> None:
    prediction = ask(*DENSE)
    before = replace(prediction)
    changes(prediction, CATALOG)
    assert prediction == before


TWICE = st.sampled_from([2, 4])


@settings(deadline=None, max_examples=15)
@given(times=TWICE, layout=st.sampled_from(["dp=8,gbs=64,zero=3,recompute=full", "tp=2,dp=8,gbs=64,zero=1,sp=1"]))
def test_twice_the_devices_for_the_same_work_cost_twice_the_device_time_at_best(times: int, layout: str) -> None:
    """A what-if that takes more devices says so, and its gain is per device."""
    prediction = ask("llama3-8b", "leonardo", layout)
    change = prediction.what_if(f"dp={8 * times}")
    assert change.after.time_s < prediction.time_s, "a step is shorter on more devices"
    assert change.gain_frac <= 0.0, "and costs no less"
    assert change.device_ratio_frac == times
    assert f"{8 * times * int(prediction.question.layout.tp)} devices instead of" in change.summary
    assert change.as_dict()["is_equal_work_on_equal_devices"] is False


RL = "prompts=32,samples=16,prompt=512,response=3000,longest=8192,tp=8"


@settings(deadline=None, max_examples=8)
@given(budget=st.sampled_from([393_216, 768_000, 1_536_000, 3_000_000]), retention=st.sampled_from([1, 2, 4]))
def test_a_what_if_of_a_budget_gains_what_the_budget_itself_says(budget: int, retention: int) -> None:
    """One figure for one thing: per trained token, whether the budget is asked for or tried."""
    question = rl_question(RL)
    change = answer(question).what_if(f"budget={budget},retention={retention}")
    step_gain = answer(rl_question(f"{RL},budget={budget},retention={retention}")).rl.step_gain
    assert change.rate_ratio_frac == pytest.approx(step_gain)
    assert ("faster" in change.summary) == (change.gain_frac > 0.0)
    assert "trained tokens a step instead of" in change.summary


def test_a_change_of_nothing_is_as_fast() -> None:
    prediction = ask(*SHARDED)
    assert prediction.what_if("mbs=2").summary == "as fast"


def rl_question(rl: str) -> Question:
    return asked(CATALOG, model="llama3-8b", system="leonardo", layout="tp=2,dp=8,gbs=512,zero=1,sp=1", rl=rl)
