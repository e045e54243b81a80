"""Who is timed with whom, and who is slow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scalewright.run.preflight.phases import earliest
from scalewright.run.preflight.slow_nodes import outliers, rounds, slow_nodes


@given(st.integers(min_value=2, max_value=200))
def test_rounds_pair_every_node_with_two_neighbours_and_nobody_twice_at_once(num_nodes: int) -> None:
    plan = rounds(num_nodes)
    assert len(plan) <= 3
    for pairs in plan:
        busy = [node for pair in pairs for node in pair]
        assert len(set(busy)) == len(busy)
    partners: dict[int, set[int]] = {node: set() for node in range(num_nodes)}
    for first, second in (pair for pairs in plan for pair in pairs):
        partners[first].add(second)
        partners[second].add(first)
    assert {len(neighbours) for neighbours in partners.values()} == ({1} if num_nodes == 2 else {2})


@given(
    st.integers(min_value=3, max_value=60),
    st.data(),
    st.floats(min_value=1.6, max_value=50.0),
)
def test_one_slow_node_is_named_whoever_it_is(num_nodes: int, data: st.DataObject, times: float) -> None:
    slow = data.draw(st.integers(min_value=0, max_value=num_nodes - 1))
    pairs_s = {
        (f"n{a}", f"n{b}"): 1.0 * (times if slow in (a, b) else data.draw(st.floats(min_value=1.0, max_value=1.05)))
        for pairs in rounds(num_nodes)
        for a, b in pairs
    }
    assert set(slow_nodes(pairs_s, factor=1.5)) == {f"n{slow}"}


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.floats(min_value=1.0, max_value=1.49), max_size=20))
def test_nobody_is_named_where_all_are_close(times_s: dict[str, float]) -> None:
    assert outliers(times_s, factor=1.5) == {}


def test_of_two_the_slower_is_the_outlier() -> None:
    assert outliers({"a": 1.0, "b": 4.0}, factor=1.5) == {"b": 4.0}


def test_who_got_least_far_is_waited_for() -> None:
    phases = {
        0: "all-reduce of two nodes, round 2",
        1: "all-reduce of two nodes, round 1 (refused)",
        2: "all-reduce of all ranks",
    }
    assert earliest(phases) == {1: phases[1]}
    assert earliest({0: "arrival", 1: "joining"}) == {0: "arrival"}
