"""Whatever is written for an option of `plan`, the answer is a request or one sentence; never a traceback."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.errors import ConfigError, ScalewrightError
from scalewright.planner.plan import make_plan
from scalewright.planner.request import BUDGETS, PlanOptions, parse_budget, resolve_request

CATALOG = Catalog((packaged_data(),))
NUMBERS = st.sampled_from(
    ["0", "1", "-1", "5", "1e3", "1e400", "nan", "inf", "0.0", "١", "1_0", "", " ", "1,5", "0x10"]
)
UNITS = st.sampled_from(["", " h", "h", " d", " MWh", " EUR", "EUR", " kUSD", " GPU", "B", "T", " k", "%", " s", " J"])
VALUES = st.tuples(NUMBERS, UNITS).map("".join)
NAMES = st.sampled_from([*BUDGETS, "gpu_hours", "", "TIME", "money "])
BUDGET = st.one_of(
    st.text(max_size=12),
    st.lists(st.tuples(NAMES, st.sampled_from(["=", "", "==", ":"]), VALUES).map("".join), max_size=3).map(",".join),
)
NODES = st.one_of(
    st.text(alphabet="0123456789,- .x", max_size=8),
    st.sampled_from(["1-99999999", "999999999999999999999", "4-4", "8-4", "3,5,7", "0-8", "--4", "4-8-16", "١-٤"]),
)


@settings(deadline=None, max_examples=300)
@given(text=BUDGET)
def test_a_budget_is_limits_above_zero_or_refused(text: str) -> None:
    limits, refusal = {}, ""
    try:
        limits = dict(parse_budget(text).limits)
    except ScalewrightError as error:
        refusal = str(error)
    assert "\n" not in refusal
    assert all(limit > 0.0 and math.isfinite(limit) for limit in limits.values())


@settings(deadline=None, max_examples=60)
@given(
    budget=st.one_of(st.none(), BUDGET),
    nodes=st.one_of(st.none(), NODES),
    objective=st.one_of(st.sampled_from(["time", "gpu-hours", "energy", "money"]), st.text(max_size=6)),
    tokens=st.one_of(st.none(), VALUES),
    walltime=st.one_of(st.none(), VALUES),
)
def test_a_plan_is_made_or_refused_in_one_sentence(
    budget: str | None, nodes: str | None, objective: str, tokens: str | None, walltime: str | None
) -> None:
    options = PlanOptions(
        model="gpt2", global_batch=64, fix="mbs=1", nodes=nodes, budget=budget, objective=objective, tokens=tokens,
        walltime=walltime,
    )  # fmt: skip
    plan, refusal = None, ""
    try:
        plan = make_plan(CATALOG, resolve_request(CATALOG, "karolina", options))
    except ConfigError as error:
        refusal = str(error)
    assert "\n" not in refusal
    assert len(refusal) < 600
    assert plan is None or plan.as_document()["fits"] == (plan.best is not None)
