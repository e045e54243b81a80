"""Weights between namespaces whose links are shaped: near the rate of a plain stream, and resharded on the way."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from scalewright.catalog.facts import Source
from scalewright.catalog.types import TransformerShape
from scalewright.lab.network import ShapedNetwork, payload_frac
from scalewright.lab.ranks import run_on_network
from scalewright.records.measurements import Measurements, read_measurements
from scalewright.records.run_directory import RunDirectory
from scalewright.workload.layout import parse_layout
from scalewright.workload.sync_run import SyncRun, SyncWayName

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
RATE_BYTES_PER_S = 25e6
LEAST_LINK_FRAC = 0.8
SHAPE = TransformerShape(
    source=Source(kind="assumed", text="a model for tests", checked=date(2026, 11, 16)), layers=4, hidden=512, heads=8,
    kv_heads=8, head_dim=64, ffn_hidden=2048, vocab=4096, seq=128, num_positions=128,
)  # fmt: skip


def synced(path: Path, ways: tuple[SyncWayName, ...], *, layout: str, **options: Any) -> Measurements:
    config = SyncRun(
        model_id="test", shape=SHAPE, layout=parse_layout(layout), path=str(path / "files"), sync_ways=ways, repeats=2,
        device="cpu", **options,
    )  # fmt: skip
    names = [f"t{rank}" for rank in range(config.num_trainers)] + [
        f"e{rank}" for rank in range(config.num_engine_ranks)
    ]
    directory = RunDirectory.create_or_resume(path / "run", config.document())
    with ShapedNetwork(names, rate_bytes_per_s=RATE_BYTES_PER_S) as network:
        assert run_on_network(network, directory, kind="sync", timeout_s=120.0) == 0
    return read_measurements(directory)


@pytest.mark.timeout(150)
def test_peers_fill_the_links_of_engines(tmp_path: Path) -> None:
    measured = synced(tmp_path, ("peers", "broadcast"), layout="dp=2,zero=3", num_engines=2)
    link = measured.summary["link_bytes_per_s"]
    assert link == pytest.approx(RATE_BYTES_PER_S * payload_frac(), rel=0.1)
    rows = {row["way"]: row for row in measured.rows}
    assert all(row["num_wrong"] == 0 for row in rows.values())
    peers = rows["peers"]
    assert peers["bytes"] == peers["weights_bytes"]
    assert peers["bytes"] / peers["time_low_s"] >= LEAST_LINK_FRAC * link
    assert peers["time_low_s"] >= peers["predicted_s"] * 0.9, "no sync is faster than its link"
    assert rows["broadcast"]["bytes"] / rows["broadcast"]["time_low_s"] <= 1.1 * link


@pytest.mark.timeout(150)
def test_two_ranks_of_an_engine_pull_half_each(tmp_path: Path) -> None:
    measured = synced(tmp_path, ("peers",), layout="dp=2", engine_tp=2)
    (row,) = measured.rows
    assert row["num_wrong"] == 0
    assert row["bytes"] < 0.65 * row["weights_bytes"], "each has the whole token table and half of the layers"
    assert row["bytes"] / row["time_low_s"] >= LEAST_LINK_FRAC * measured.summary["link_bytes_per_s"]
