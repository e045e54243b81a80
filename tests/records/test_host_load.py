"""A host that others use is told of, in one way for every measurement; a free one is not mentioned."""

from __future__ import annotations

import pytest

from scalewright.records.host_load import HostLoad, load_now


@pytest.mark.parametrize(
    ("load", "num_cores", "is_busy"), [(0.0, 2, False), (1.0, 2, False), (1.1, 2, True), (7, 64, False)]
)
def test_half_of_the_cores_are_enough_to_be_busy(load: float, num_cores: int, is_busy: bool) -> None:
    load_before = HostLoad(load=load, num_cores=num_cores)
    assert load_before.is_busy is is_busy
    assert bool(load_before.note()) is is_busy


def test_the_note_has_the_load_the_cores_and_what_to_do() -> None:
    note = HostLoad(load=7.04, num_cores=2).note()
    assert "load 7.0 on 2 cores" in note
    assert "measure again when it is quiet" in note
    assert "on 1 core in" in HostLoad(load=3.0, num_cores=1).note()


def test_load_is_of_the_whole_host() -> None:
    host_load = load_now()
    assert host_load.load >= 0.0
    assert host_load.num_cores >= 1
