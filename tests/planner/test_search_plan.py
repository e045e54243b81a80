"""A plan: why others lost, what would fit, budgets, several systems, and a document that says it all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner_cases import CATALOG, request_for
from scalewright.engines.expressed import express
from scalewright.errors import ConfigError, LayoutError
from scalewright.planner.limits import differences, terms_s
from scalewright.planner.plan import Plan, compare, make_plan, what_if
from scalewright.planner.request import Budget, parse_budget, parse_counts, resolve_work
from scalewright.planner.search.fewest import fewest_gpus
from scalewright.planner.search.search import search
from scalewright.planner.search.smallest_change import fixes
from scalewright.workload.layout import parse_layout
from scalewright.workload.training import TrainingMode

PLAN = make_plan(CATALOG, request_for("gpt3-13b", "selene", counts=(64,), global_batch=256))
MISFIT = make_plan(CATALOG, request_for("gpt3-175b", "lumi", counts=(32,), global_batch=64))


def best_of(plan: Plan) -> Any:
    assert plan.best is not None
    return plan.best


def test_nothing_listed_is_faster_than_the_best_by_more_than_the_resolution() -> None:
    best, choice = best_of(PLAN).time_s, PLAN.choice
    assert choice is not None
    times = [p.time_s for p in PLAN.alternatives]
    assert times == sorted(times)
    assert choice.fastest.time_s == min(best, *times)
    assert best <= choice.fastest.time_s * (1 + choice.resolution_frac)
    assert len(PLAN.alternatives) == 4


def test_loser_differs_in_its_knob_and_its_terms_add_up_to_the_loss() -> None:
    best = best_of(PLAN)
    lost = [loser for loser in PLAN.losers if loser.prediction is not None]
    assert {"tp", "pp", "recompute", "zero", "mbs"} <= {loser.knob for loser in lost}
    for loser in lost:
        assert loser.prediction is not None
        value = getattr(loser.prediction.question.layout, loser.knob)
        assert str(int(value) if isinstance(value, bool) else value) == loser.value
        deltas = differences(best.time, loser.prediction.time)
        assert sum(d for _, d in deltas) == pytest.approx(loser.loss_s, abs=1e-9)
        assert loser.terms == tuple(deltas[: len(loser.terms)])
        verb = "loses" if loser.loss_s >= 0 else "gains"
        assert loser.sentence.startswith(f"{loser.knob}={loser.value} {verb} ")
    losses = [loser.loss_s for loser in PLAN.losers]
    assert losses == sorted(losses)
    assert PLAN.choice is not None
    assert min(losses) >= -PLAN.choice.resolution_frac * best.time_s


def test_family_that_cannot_be_says_why() -> None:
    plan = make_plan(CATALOG, request_for("gpt3-175b", "lumi", counts=(64,), global_batch=64))
    sentences = {(loser.knob, loser.value): loser.sentence for loser in plan.losers if loser.prediction is None}
    assert sentences["tp", "16"] == "tp 16 spans two nodes of 8, so its sums cross the network; --fix tp=16 includes it"
    assert any("GiB of" in s and s.endswith("at least") for s in sentences.values())


def test_terms_of_a_step_are_all_of_it() -> None:
    time = best_of(PLAN).time
    assert sum(terms_s(time).values()) == pytest.approx(float(time.total))


def test_plan_that_does_not_fit_names_the_cheapest_change_that_would() -> None:
    assert MISFIT.best is None
    assert MISFIT.reason.startswith("needs ")
    first = MISFIT.fixes[0]
    assert first.change == "8 nodes instead of 4"
    assert first.prediction.fits
    costs = [fix.gpu_s_per_step for fix in MISFIT.fixes if fix.same_training]
    assert costs == sorted(costs)
    assert [fix.same_training for fix in MISFIT.fixes] == sorted((f.same_training for f in MISFIT.fixes), reverse=True)


@pytest.mark.parametrize("fix", ["zero=0", "mbs=64", "mbs=16,recompute=none"])
def test_knob_that_is_fixed_too_high_is_let_go(fix: str) -> None:
    text = f"tp=1,pp=1,cp=1,{fix}"
    space = request_for("gpt3-6.7b", "selene", counts=(8,), global_batch=512, fix=text).space(CATALOG, 8)
    assert not np.isfinite(search(space).step_time_s).any()
    knob, _, value = fix.partition(",")[0].partition("=")
    (released,) = [suggestion for suggestion in fixes(space) if suggestion.change.startswith(f"{knob}=")]
    assert released.change.endswith(f"instead of {value}")
    assert released.prediction.fits


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_fewest_devices_fit_and_half_of_them_do_not(mode: Any) -> None:
    request = request_for("gpt3-13b", "selene", counts=(64,), global_batch=256)
    (least,) = [f for f in fewest_gpus(request.space(CATALOG, 64)) if f.mode.name == mode]
    space = replace(request.space(CATALOG, least.num_gpus), mode=TrainingMode(name=mode))
    space = replace(space, feed=replace(space.feed, async_checkpoint=False))
    assert search(space).feasible > 0
    if least.num_gpus > 1:
        assert search(space.on(least.num_gpus // 2)).feasible == 0


def test_the_fewest_devices_of_a_stack_are_in_a_layout_that_it_has() -> None:
    request = request_for("gpt3-13b", "selene", counts=(64,), global_batch=256, stack="megatron-core")
    least = fewest_gpus(request.space(CATALOG, 64))
    assert least
    assert all(int(row.layout.zero) <= CATALOG.stack("megatron-core").max_zero for row in least)


def test_modes_that_keep_less_need_no_more_devices() -> None:
    counts = {f.mode.name: f.num_gpus for f in PLAN.minimum}
    assert counts["lora"] <= counts["offload"] <= counts["full"]


def test_what_if_is_the_best_under_its_condition_and_its_terms_add_up() -> None:
    best = best_of(PLAN)
    comparison = what_if(CATALOG, PLAN, "tp=8,recompute=full")
    assert (comparison.after.question.layout.tp, comparison.after.question.layout.recompute) == (8, "full")
    delta = comparison.after.time_s - best.time_s
    assert sum(d for _, d in comparison.terms) == pytest.approx(delta)
    assert delta > 0


def test_what_if_changes_nodes_precision_and_stack() -> None:
    assert int(what_if(CATALOG, PLAN, "nodes=16").after.question.layout.num_gpus) == 128
    assert what_if(CATALOG, PLAN, "precision=fp16").after.question.recipe.name == "fp16"
    assert what_if(CATALOG, PLAN, "stack=eager").after.question.stack.id == "eager"


def test_choice_among_node_counts_follows_the_objective() -> None:
    counts = (16, 32, 64)
    chosen = {
        objective: make_plan(
            CATALOG, request_for("gpt3-13b", "selene", counts=counts, global_batch=64, objective=objective)
        ).result.space.num_gpus
        for objective in ("time", "gpu-hours")
    }
    assert chosen["time"] == 64
    assert chosen["gpu-hours"] < 64


def test_budget_moves_the_choice_and_one_that_nobody_meets_is_refused() -> None:
    counts = (64, 128)
    request = request_for("gpt3-13b", "selene", counts=counts, global_batch=64, tokens="10B")
    free = make_plan(CATALOG, request)
    assert free.run is not None
    assert free.result.space.num_gpus == 128
    tight = Budget(limits={"gpu-hours": 0.99 * free.run.num_gpu_hours})
    held = make_plan(CATALOG, replace(request, budget=tight))
    assert held.result.space.num_gpus == 64
    assert held.run is not None
    assert held.run.num_gpu_hours <= tight.limits["gpu-hours"]
    with pytest.raises(ConfigError, match=r"budget gpu-hours of 1\.00 GPU-hours and 10\.0 B tokens conflict"):
        make_plan(CATALOG, replace(request, budget=Budget(limits={"gpu-hours": 1.0})))


def test_count_that_nothing_divides_does_not_spoil_the_others() -> None:
    plan = make_plan(CATALOG, request_for("llama3-8b", "selene", counts=(8, 4480), global_batch=8))
    assert plan.result.space.num_gpus == 8
    assert plan.best is not None


def test_budgets_read_with_their_units() -> None:
    limits = parse_budget("gpu-hours=100k,energy=1 MWh,money=2 MUSD,time=30 d").limits
    assert limits == {"gpu-hours": 1e5, "energy": 3.6e9, "money": 2e6, "time": 30 * 86400.0}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("money=900 kEUR", {"eur": 9e5}),
        ("eur=900 kEUR", {"eur": 9e5}),
        ("eur=5000", {"eur": 5e3}),
        ("billed=50000", {"billed": 5e4}),
    ],
)
def test_budgets_in_euros_and_in_the_unit_of_the_site(text: str, expected: dict[str, float]) -> None:
    assert parse_budget(text).limits == expected


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ("billed=1", r"budget billed of 1\.00 core-hours and 10\.0 B tokens conflict: .* core-hours; train on"),
        ("eur=1", r"budget eur cannot be held to: no price of a100-sxm-64gb on leonardo: give one with"),
    ],
)
def test_a_budget_that_the_site_bills_or_nobody_priced(budget: str, words: str) -> None:
    request = request_for("llama3-8b", "leonardo", counts=(64,), global_batch=1024)
    work = resolve_work(request.spec, tokens="10B", steps=None, global_batch=1024)
    with pytest.raises(ConfigError, match=words):
        make_plan(CATALOG, replace(request, work=work, budget=parse_budget(budget)))


@pytest.mark.parametrize(
    ("nodes", "gpus", "expected"),
    [("8", None, (64,)), ("8", 64, (64,)), ("2,8", None, (16, 64)), ("2-16", None, (16, 32, 64, 128)), (None, 5, (5,))],
)
def test_node_counts_as_written(nodes: str | None, gpus: int | None, expected: tuple[int, ...]) -> None:
    assert parse_counts(nodes, gpus, PLAN.request.machine) == expected


def test_tokens_of_the_run_are_as_asked_or_as_published_or_twenty_a_parameter() -> None:
    spec = PLAN.request.spec
    assert resolve_work(spec, tokens="300B", steps=None, global_batch=8).num_tokens == 300e9
    assert resolve_work(spec, tokens=None, steps=10, global_batch=8).num_tokens == 10 * 8 * 2048
    published = resolve_work(spec, tokens=None, steps=None, global_batch=8)
    assert (published.num_tokens, published.origin) == (300e9, "as published")
    nobody_says = replace(spec, num_training_tokens=None)
    assumed = resolve_work(nobody_says, tokens=None, steps=None, global_batch=8)
    assert assumed.num_tokens == 20 * spec.num_params
    assert "20 per parameter" in assumed.origin
    tuned = resolve_work(spec, tokens=None, steps=None, global_batch=8, stage="sft")
    assert tuned.num_tokens == 1000 * 8 * 2048
    assert "assumed" in tuned.origin


def test_systems_are_compared_fastest_first_and_those_that_do_not_fit_last() -> None:
    requests = [request_for("llama3-8b", name, counts=(16,), global_batch=64) for name in ("lumi", "jupiter", "selene")]
    requests.append(request_for("gpt3-175b", "selene", counts=(8,), global_batch=64))
    rows = compare(CATALOG, requests)
    times = [row.best.time_s for row in rows if row.best is not None]
    assert times == sorted(times)
    assert rows[-1].best is None
    assert "GiB of" in rows[-1].reason


def test_plan_of_a_layout_that_nothing_divides_names_the_two_that_conflict() -> None:
    with pytest.raises(LayoutError, match=r"fix pp=16,vpp=4 and gpt3-13b .* 40 layers"):
        make_plan(CATALOG, request_for("gpt3-13b", "selene", counts=(64,), global_batch=64, fix="pp=16,vpp=4"))


def test_document_holds_predictions_of_the_shape_that_predict_gives() -> None:
    document = PLAN.as_document()
    best = best_of(PLAN).document()
    assert document["schema"] == "scalewright.plan/1"
    assert {k: v for k, v in document["best"].items() if k not in ("layout", "layout_text")} == best
    assert document["best"]["layout"] == best["input"]["layout"]
    assert parse_layout(document["best"]["layout_text"]) == best_of(PLAN).question.layout
    assert document["considered"] == sum(document["rejected"].values()) + document["feasible"]
    assert all(item["schema"] == "scalewright.prediction/1" for item in document["alternatives"])


def test_id_depends_on_the_question_alone() -> None:
    again = make_plan(CATALOG, request_for("gpt3-13b", "selene", counts=(64,), global_batch=256))
    other = make_plan(CATALOG, request_for("gpt3-13b", "selene", counts=(64,), global_batch=512))
    assert again.id == PLAN.id
    assert other.id != PLAN.id


@pytest.mark.parametrize("framework", ["megatron", "deepspeed", "fsdp"])
def test_framework_gets_the_fastest_layout_that_it_can_express(framework: Any) -> None:
    best = best_of(PLAN)
    expressed = express(PLAN.result, best, framework)
    assert expressed.emitted.framework == framework
    assert expressed.prediction.fits
    assert PLAN.choice is not None
    assert expressed.prediction.time_s >= PLAN.choice.fastest.time_s * (1 - 1e-9)
    assert bool(expressed.refused) == (expressed.prediction.question.layout != best.question.layout)


def test_search_of_a_mode_gives_predictions_in_that_mode() -> None:
    request = request_for("gpt3-13b", "selene", counts=(8,), global_batch=64, mode="lora")
    best = best_of(make_plan(CATALOG, request))
    assert best.question.mode.name == "lora"
    assert np.isfinite(best.time_s)


def test_hosts_without_room_for_a_copy_of_the_state_save_while_training_stops() -> None:
    """DeepSeek-V3 offloaded to 64 nodes of Perlmutter: its state fits the hosts once, not twice."""
    plan = make_plan(
        CATALOG, request_for("deepseek-v3", "perlmutter", counts=(256,), global_batch=256, mode="offload", fix="mbs=1")
    )
    assert plan.best is not None
    assert plan.run is not None
    assert plan.run.checkpoint == "sync"
    assert any("training stops" in note for note in plan.notes)
    assert min(m.num_gpus for m in plan.minimum if m.mode.name == "offload") <= 256
    smaller = next(row for row in plan.rows if row.num_gpus == 128)
    assert "host memory" in smaller.reason


def test_what_lacks_host_memory_does_not_blame_the_device() -> None:
    plan = make_plan(
        CATALOG, request_for("deepseek-v3", "perlmutter", counts=(128,), global_batch=256, mode="offload", fix="mbs=1")
    )
    assert plan.best is None
    assert plan.reason.endswith("host memory a node")
