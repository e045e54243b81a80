"""Bytes that claim to be a flight recorder never execute anything and never raise."""

from __future__ import annotations

import os
import pickle
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.observe.flight_cases import recorders

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.hang import stalls
from scalewright.observe.readers.flight.plain_pickle import PlainPickleError, plain_value
from scalewright.observe.readers.reading import read_evidence

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


class Planted:
    """Unpickled, it would make a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (self.folder,)


def read_bytes(data: bytes) -> Evidence:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "nccl_trace_rank_0").write_bytes(data)
        evidence = read_evidence([Path(folder)])
    stalls(evidence)
    return evidence


@given(plain, st.integers(0, 5))
def test_plain_values_come_out_as_they_are(value: Any, protocol: int) -> None:
    try:
        assert plain_value(pickle.dumps(value, protocol)) == value
    except PlainPickleError as error:
        # Old protocols make bytes by a call.
        assert protocol < 3
        assert "GLOBAL" in str(error)  # noqa: PT017


def value_or_reason(data: bytes) -> Any:
    try:
        return plain_value(data)
    except PlainPickleError as error:
        return str(error)


@given(st.binary(max_size=300))
def test_random_bytes_give_a_plain_value_or_a_reason(data: bytes) -> None:
    for start in (b"", b"\x80\x02}(", b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00}("):
        value = value_or_reason(start + data)
        assert value is None or type(value).__module__ == "builtins"
        assert not callable(value)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_broken_dumps_never_raise(seed: int, num_changes: int) -> None:
    """Bytes of a real dump are changed, cut out and doubled."""
    every = recorders(2, {"1": [0, 1]})
    every[0].add("1", state="scheduled")
    every[0].add("0", "send 0->1", state="scheduled")
    data = bytearray(pickle.dumps(every[0].document(), protocol=2))
    draw = random.Random(seed)
    for _ in range(num_changes):
        place = draw.randrange(60, len(data))
        if draw.random() < 0.2:
            del data[place : place + draw.randrange(1, 30)]
        else:
            data[place : place + 1] = bytes(draw.randrange(256) for _ in range(draw.randrange(3)))
    assert len(read_bytes(bytes(data)).sources) == 1


@given(plain)
def test_dumps_with_values_of_other_types_never_raise(value: Any) -> None:
    keys = ("version", "pg_config", "pg_status", "entries")
    for key in keys:
        document: dict[str, Any] = dict.fromkeys(keys)
        document[key] = value
        evidence = read_bytes(pickle.dumps(document, protocol=4))
        assert len(evidence.sources) == 1


@pytest.mark.parametrize("protocol", range(6))
def test_hostile_pickles_make_nothing(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "made"
    dump = {"version": "2.9", "pg_config": {}, "pg_status": {}, "entries": [Planted(str(target))]}
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(dump, protocol))
    evidence = read_evidence([tmp_path])
    assert not target.exists()
    assert any("not read" in source.problem or source.kind != "flight recorder dump" for source in evidence.sources)


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'touch made'\ntR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"\x80\x02}(X\x09\x00\x00\x00pg_configcbuiltins\neval\n(X\x01\x00\x00\x001tRu.",
        b"\x80\x02}(X\x09\x00\x00\x00pg_config\x82\x01u.",
        b"\x80\x02}(X\x09\x00\x00\x00pg_configPid\nu.",
    ],
)
def test_instructions_that_import_or_call_are_refused(data: bytes) -> None:
    with pytest.raises(PlainPickleError):
        plain_value(data)


def test_depth_and_length_are_bounded() -> None:
    """A million nested tuples as a key would be hashed by recursion; a text of 4 GB is only claimed."""
    with pytest.raises(PlainPickleError, match="not a number or a text"):
        plain_value(b"\x80\x02})" + b"\x85" * 1_000_000 + b"K\x01s.")
    with pytest.raises(PlainPickleError):
        plain_value(b"\x80\x02}(X\xff\xff\xff\xff" + b"a" * 100)
    assert isinstance(plain_value(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."), list)
