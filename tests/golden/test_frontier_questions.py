"""Frontier's tuned layouts in our search: do they come out at or near the top, and where not, why?

Kind: measured (the layouts are what the authors' search and scripts settled on). Source: Dash et al. 2023, Optimizing
Distributed Training on Frontier for Large Language Models, arXiv:2312.12705, table of tuned configurations and the
authors' job scripts: Megatron-DeepSpeed in fp16 with FlashAttention-2 and full activation checkpointing; sequence 2048
for 22B and 1T, 4096 for 175B. The paper's table and its scripts differ for 1T; both are here.

Their software had no context parallelism, no interleaving under DeepSpeed's pipeline and no sequence parallelism, and
they recomputed every layer: `THEIRS` is the search with these knobs fixed. The wider search may use them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.catalog.types import Stack
from scalewright.costs.machine import machine_from_system
from scalewright.planner.answer import Answer, answer
from scalewright.planner.question import Question
from scalewright.planner.search.search import SearchResult, search
from scalewright.planner.search.space import NOTHING_FIXED, Fixed, Space, parse_fixed
from scalewright.study.points import open_study
from scalewright.workload.layout import Layout, parse_layout
from scalewright.workload.model import ModelSpec, from_catalog
from scalewright.workload.precision import recipe

CATALOG = Catalog((packaged_data(),))
MACHINE = machine_from_system(CATALOG, "frontier")
THEIRS = "cp=1,sp=0,vpp=1,recompute=full"
ALIKE = 1e-9
"""Share of a time below which two layouts are the same in all but name."""
RECOMPUTED = 4.0 / 3.0
"""Work with full recomputation over work without: a second forward pass beside one forward and two of backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """One published layout, and how far from the top it may come out."""

    model: str
    seq_len: int
    layout: str
    ratio: float
    """Its time over the best of their own knobs, at most."""
    share_frac: float
    """Of all layouts of the wider search that fit, so many may be faster."""

    @property
    def spec(self) -> ModelSpec:
        return from_catalog(CATALOG.model(self.model)).with_seq(self.seq_len)

    @property
    def parsed(self) -> Layout:
        return parse_layout(self.layout)


# 22B: the same split with a micro-batch of 2 is 1 % faster, which is all that beats it. 175B and 1T: layouts with more
# copies and fewer stages are 9 to 13 % faster, as less of the pipeline stands idle; they take 47 to 63 GiB of the
# device's 64, where the tuned ones take 39 to 43. The difference is a tenth of the interval of the predictions.
CASES = {
    "22b": Tuned(
        model="frontier-22b", seq_len=2048, layout="tp=1,pp=8,dp=2,mbs=1,gbs=640,zero=0,recompute=full",
        ratio=1.05, share_frac=0.25,
    ),
    "175b": Tuned(
        model="frontier-175b", seq_len=4096, layout="tp=4,pp=16,dp=2,mbs=1,gbs=640,zero=1,recompute=full",
        ratio=1.15, share_frac=0.15,
    ),
    "1t-scripts": Tuned(
        model="frontier-1t", seq_len=2048, layout="tp=4,pp=128,dp=2,mbs=1,gbs=1024,zero=1,recompute=full",
        ratio=1.15, share_frac=0.10,
    ),
    "1t-table": Tuned(
        model="frontier-1t", seq_len=2048, layout="tp=8,pp=64,dp=2,mbs=1,gbs=1600,zero=1,recompute=full",
        ratio=1.17, share_frac=0.10,
    ),
}  # fmt: skip


def stack() -> Stack:
    """Megatron-DeepSpeed of 2023 with FlashAttention-2: the software of the shipped study."""
    return CATALOG.stack("megatron-deepspeed-flash")


@cache
def searched(name: str, fixed: str = "") -> SearchResult:
    case, software = CASES[name], stack()
    knobs: Fixed = parse_fixed(fixed) if fixed else NOTHING_FIXED
    return search(
        Space(
            spec=case.spec, machine=MACHINE, num_gpus=int(case.parsed.num_gpus), global_batch=int(case.parsed.gbs),
            recipes=(recipe("fp16"),), stack_of=lambda _: software, fixed=knobs,
        )
    )  # fmt: skip


@cache
def tuned(name: str) -> Answer:
    case = CASES[name]
    return answer(Question(spec=case.spec, machine=MACHINE, layout=case.parsed, recipe=recipe("fp16"), stack=stack()))


def tuned_s(name: str) -> float:
    return tuned(name).time_s


def times_s(result: SearchResult, zero: int | None = None) -> np.ndarray:
    """Step times of the layouts that fit, fastest first."""
    kept = np.isfinite(result.step_time_s)
    if zero is not None:
        kept &= result.having("zero", zero)
    return np.sort(result.step_time_s[kept])


def num_faster(name: str, times: np.ndarray) -> int:
    return int(np.count_nonzero(times < tuned_s(name) * (1.0 - ALIKE)))


@pytest.mark.parametrize("name", CASES)
def test_tuned_layouts_fit_and_are_in_the_search(name: str) -> None:
    assert tuned(name).fits
    result = searched(name, THEIRS)
    assert CASES[name].parsed in [result.layout(i) for i in np.flatnonzero(np.isfinite(result.step_time_s))]


@pytest.mark.parametrize("name", CASES)
def test_tuned_layouts_are_near_the_top_of_their_own_knobs(name: str) -> None:
    best = times_s(searched(name, THEIRS), CASES[name].parsed.zero)[0]
    assert tuned_s(name) / best <= CASES[name].ratio
    low = float(tuned(name).interval_s[0])
    assert low < best  # what beats them is well inside what the prediction leaves open


@pytest.mark.parametrize("name", CASES)
def test_tensor_against_pipeline_was_tuned_right(name: str) -> None:
    """With the number of copies they chose, no other split of the rest is more than 8 % faster.

    Half as much tensor and twice as much pipeline gain 7 % for 175B and 3 % for the 1T of the table.
    """
    case = CASES[name]
    best = times_s(searched(name, f"{THEIRS},zero={case.parsed.zero},dp={case.parsed.dp}"))[0]
    assert tuned_s(name) / best <= 1.08


@pytest.mark.parametrize("name", CASES)
def test_few_layouts_of_the_whole_search_are_faster(name: str) -> None:
    times = times_s(searched(name))
    assert num_faster(name, times) / len(times) <= CASES[name].share_frac


@pytest.mark.parametrize("name", CASES)
def test_what_the_wider_search_gains_is_the_recomputation(name: str) -> None:
    """The best of all layouts keeps its activations, and gains no more by it than the second forward pass."""
    result = searched(name)
    best = result.layout(result.fastest(1)[0])
    assert best.recompute in ("none", "selective", "operators")
    own = times_s(searched(name, THEIRS), CASES[name].parsed.zero)[0]
    # Splitting activations by sequence, interleaving and ZeRO give the tenth that recomputation does not.
    assert own / times_s(result)[0] <= RECOMPUTED * 1.10


def test_the_shipped_study_asks_about_the_same_software() -> None:
    study = open_study(CATALOG, "frontier-tuning")
    assert {cell.options["stack"] for cell in study.combinations} == {stack().id}
    layouts = {str(cell.options["layout"]) for cell in study.combinations if cell.labels["experiment"] == "tuned"}
    assert {parse_layout(text) for text in layouts} == {CASES[name].parsed for name in ("22b", "175b", "1t-table")}


def test_its_kernels_are_those_of_its_parents() -> None:
    """No run with a known layout moves this stack apart from them."""
    parent, flash = CATALOG.stack("eager-unfused"), CATALOG.stack("eager")
    assert stack().host_time.value == pytest.approx(parent.host_time.value, rel=0.15)
    assert stack().elementwise_passes.value == pytest.approx(parent.elementwise_passes.value, rel=0.15)
    assert stack().attention_share.value == pytest.approx(flash.attention_share.value, rel=0.15)


@pytest.mark.parametrize("name", ["22b", "175b"])
def test_sharding_everything_lost_because_nothing_hides_its_gathers(name: str) -> None:
    """ZeRO-3 without tensor and pipeline parallelism is slower than the tuned layout on their software.

    With whole layers gathered beside the products (FSDP) it would be near the tuned layout or faster.
    """
    case = CASES[name]
    layout = f"dp={case.parsed.num_gpus},mbs=1,gbs={case.parsed.gbs},zero=3,recompute=full"

    def sharded(software: Stack) -> Answer:
        question = Question(
            spec=case.spec, machine=MACHINE, layout=parse_layout(layout), recipe=recipe("fp16"), stack=software
        )
        return answer(question)

    theirs, hidden = sharded(stack()), sharded(CATALOG.stack("eager"))
    assert theirs.time_s > 1.15 * tuned_s(name)
    assert "data_parallel" in {limit.name for limit in theirs.limits[:2]}
    assert hidden.time_s < 0.8 * theirs.time_s


@pytest.mark.parametrize("name", CASES)
def test_the_search_on_their_software_splits_the_model(name: str) -> None:
    best = searched(name, THEIRS)
    layout = best.layout(best.fastest(1)[0])
    assert layout.tp * layout.pp > 1
    assert layout.zero < 3
