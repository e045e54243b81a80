"""Ranks beside each other, distributions, MFU computed again, and predicted beside measured terms."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.observe.trace_maker import collective, kernel, read, step, written

from scalewright.catalog.library import open_catalog
from scalewright.observe.breakdown.across_ranks import across_ranks, waits_s
from scalewright.observe.breakdown.distribution import distribution, slow_tail, variation
from scalewright.observe.breakdown.terms import communication_term, measured_terms_s, predicted_terms_s, term_table
from scalewright.observe.breakdown.utilization import utilization
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import RankTime, Spot, StepFact
from scalewright.planner.answer import answer
from scalewright.planner.question import ask

SPOT = Spot(file="made")


def two_ranks(tmp_path: Path, *, slow_ms: float = 30.0) -> Evidence:
    """Rank 1 computes longer; both leave the all-reduce at the same moment, whatever their clocks say."""
    for rank, compute in enumerate((50.0, 50.0 + slow_ms, 50.0)):
        clock, events = rank * 1e6, []
        for number in range(4):
            at = clock + number * 100
            ready = at + compute
            events += [step(at, at + 100, number), kernel(at, ready), collective(ready, at + 90)]
        written(tmp_path / f"{rank}.json", events, rank=rank, num_ranks=3)
    return read(tmp_path)


def test_the_rank_that_others_wait_for(tmp_path: Path) -> None:
    across = across_ranks(two_ranks(tmp_path).rank_times)
    assert across is not None
    assert across.critical is not None
    assert across.critical.rank == 1
    assert across.critical.waited_s == pytest.approx(0.030)
    assert (across.critical.excess_part, across.critical.excess_s) == ("compute_s", pytest.approx(0.030))
    assert [rank.waited_s for rank in across.ranks] == pytest.approx([0.030, 0.0, 0.030])
    assert across.compute is not None
    assert across.compute.between_ranks_frac > 0.2
    assert across.compute.between_steps_frac == pytest.approx(0.0)


def test_even_ranks_wait_for_nobody(tmp_path: Path) -> None:
    assert list(waits_s(two_ranks(tmp_path, slow_ms=0.0).rank_times).values()) == pytest.approx([0.0] * 3)


def test_ranks_of_other_groups_are_not_compared() -> None:
    def time(rank: int, call_s: float, group: tuple[int, ...]) -> RankTime:
        key = "all_reduce/tp"
        return RankTime(
            rank=rank, spot=SPOT, step=1, step_s=1.0, calls_s={key: (call_s,)}, by_collective_s={key: call_s},
            exposed_by_collective_s={key: call_s}, group_ranks={"tp": group},
        )  # fmt: skip

    waits = waits_s([time(0, 0.1, (0, 1)), time(1, 0.1, (0, 1)), time(2, 0.5, (2, 3)), time(3, 0.6, (2, 3))])
    assert waits == pytest.approx({0: 0.0, 1: 0.0, 2: 0.0, 3: 0.1})


def test_a_planted_tail_is_seen_and_noise_is_not() -> None:
    noise = random.Random(1)
    even = [1.0 + noise.gauss(0.0, 0.02) for _ in range(200)]
    assert slow_tail(even) is None
    assert slow_tail([noise.uniform(1.0, 2.0) for _ in range(200)]) is None
    tail = slow_tail([*even[:180], *(2.0 + noise.random() for _ in range(20))])
    assert tail is not None
    assert tail.elbow.share_frac == pytest.approx(0.9, abs=0.02)
    assert tail.lost_frac == pytest.approx(20 * 1.5 / (180 + 20 * 2.5), rel=0.15)
    shown = distribution(even)
    assert shown.tail is None
    assert shown.points(10)[-1] == (max(even), 1.0)


def test_variation_between_ranks_and_between_steps() -> None:
    only_ranks = variation({(rank, number): 1.0 + rank for rank in range(2) for number in range(3)})
    assert only_ranks is not None
    assert (only_ranks.between_ranks_frac, only_ranks.between_steps_frac) == pytest.approx((1 / 3, 0.0))
    only_steps = variation({(rank, number): 1.0 + number for rank in range(2) for number in range(3)})
    assert only_steps is not None
    assert only_steps.between_ranks_frac == pytest.approx(0.0)
    assert only_steps.rest_frac == pytest.approx(0.0)
    assert variation({(0, 1): 1.0, (1, 2): 1.0}) is None


@pytest.mark.parametrize(
    ("key", "term"),
    [
        ("all_reduce/TENSOR_MODEL_PARALLEL_GROUP", "tensor_parallel"), ("all_gather/mesh_dp_shard", "data_parallel"),
        ("all_reduce/DATA_PARALLEL_GROUP_WITH_CP", "data_parallel"),
        ("reduce_scatter/fsdp", "data_parallel"), ("send/PIPELINE_MODEL_PARALLEL_GROUP", "pipeline_transfer"),
        ("all_to_all/EXPERT_MODEL_PARALLEL_GROUP", "expert_parallel"), ("all_gather/mesh_cp", "context_parallel"),
        ("send_recv/stream 20", "pipeline_transfer"), ("all_reduce/7", "tensor_parallel"),
        ("all_reduce/8", "data_parallel"), ("all_reduce/default_pg", "other_communication"),
    ],
)  # fmt: skip
def test_a_group_is_a_term_of_the_planner(key: str, term: str) -> None:
    groups = {"7": (4, 5, 6, 7), "8": (1, 5)}
    sizes = {"tp": 4, "cp": 1, "ep": 1, "pp": 2, "dp": 2}
    assert communication_term(key, groups, sizes) == term


def test_one_split_axis_names_every_group() -> None:
    sizes = {"tp": 1, "cp": 1, "ep": None, "pp": 1, "dp": 8}
    assert communication_term("all_reduce/default_pg", {}, sizes) == "data_parallel"


def test_measured_terms_add_up_to_the_step(tmp_path: Path) -> None:
    times = two_ranks(tmp_path).rank_times
    terms = measured_terms_s(times, {"tp": 1, "cp": 1, "ep": 1, "pp": 1, "dp": 3})
    assert sum(terms.values()) == pytest.approx(0.1)
    assert terms["stragglers"] == pytest.approx(0.020)
    assert terms["data_parallel"] == pytest.approx(0.010)


def prediction() -> dict[str, object]:
    question = ask(
        open_catalog(),
        model="llama3-8b",
        system="generic-h100",
        layout="tp=1,pp=1,dp=8,mbs=1,gbs=64,zero=1,recompute=full",
    )
    return answer(question).document()


def test_every_leaf_of_a_prediction_is_in_one_row() -> None:
    document = prediction()
    rows, leaves = predicted_terms_s(document)
    assert sum(rows.values()) == pytest.approx(document["step_time_s"])
    assert {"compute", "data_parallel", "optimizer"} <= set(rows)
    assert "matmul_forward" in leaves["compute"]
    assert "pipeline_bubble" not in leaves["compute"]


def run_as_predicted(document: dict[str, object], *, idle_s: float = 0.0) -> Evidence:
    rows, _ = predicted_terms_s(document)
    talking = sum(value for name, value in rows.items() if name.endswith("parallel"))
    own = rows["compute"] + rows["optimizer"]
    idle = sum(rows.values()) - own - talking + idle_s
    evidence = Evidence(prediction=document)
    time = RankTime(
        rank=0, spot=SPOT, step=1, step_s=own + talking + idle, compute_s=own, exposed_communication_s=talking,
        exposed_by_collective_s={"all_gather/mesh_dp": talking}, idle_s=idle, optimizer_s=rows["optimizer"],
        is_traced=True,
    )  # fmt: skip
    evidence.add([time])
    return evidence


def test_the_largest_difference_is_named() -> None:
    document = prediction()
    same = term_table(run_as_predicted(document))
    assert same is not None
    assert same.largest is not None
    assert abs(same.largest.difference_s) < 0.05 * same.measured_s
    late = term_table(run_as_predicted(document, idle_s=3.0))
    assert late is not None
    assert late.largest is not None
    assert late.largest.name == "host_and_bubble"
    assert late.largest.difference_s == pytest.approx(3.0, rel=0.1)


def test_mfu_is_computed_again_and_not_believed() -> None:
    document = prediction()
    evidence = Evidence(prediction=document)
    stated = {
        "model": "llama3-8b", "seq": "8192", "num_ranks": "8", "gbs": "64", "recompute": "full", "precision": "bf16",
        "accelerator": "NVIDIA H100 80GB HBM3",
    }  # fmt: skip
    evidence.settings |= {name: (value, SPOT) for name, value in stated.items()}
    step_s = float(str(document["step_time_s"]))
    evidence.add(StepFact(step=n, spot=SPOT, dialect="x", time_s=step_s, mfu_frac=0.9) for n in range(20))
    again = utilization(evidence)
    assert again is not None
    assert again.mfu_frac == pytest.approx(document["mfu_frac"])
    assert again.hfu_frac == pytest.approx(document["hfu_frac"])
    del evidence.settings["accelerator"]
    other = utilization(evidence)
    assert other is not None
    assert other.mfu_frac == pytest.approx(document["mfu_frac"])
    evidence.prediction = document | {"mfu_frac": 1e308, "model_flop": 1e-300}  # a peak of 0
    nothing = utilization(evidence)
    assert nothing is not None
    assert nothing.mfu_frac is None
    evidence.prediction = document
    del evidence.settings["gbs"]
    assert utilization(evidence) is None
