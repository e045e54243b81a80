"""Collectives over links of known rates: the alpha-beta fit finds rate x payload share, and a slow link for all."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from scalewright.errors import EnvironmentFailedError
from scalewright.lab.network import ShapedNetwork, payload_frac
from scalewright.lab.ranks import run_on_network
from scalewright.observe.alpha_beta import Fit, fit_collectives
from scalewright.records.measurements import Measurements, read_measurements
from scalewright.records.run_directory import RunDirectory
from scalewright.workload.collective import CollectiveOp
from scalewright.workload.collectives_run import CollectivesRun

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
RATES_BYTES_PER_S = (40e6, 100e6)
TIMEOUT_S = 120.0


def measured(network: ShapedNetwork, path: Path, *ops: CollectiveOp, budget_s: float) -> Measurements:
    config = CollectivesRun(ops=ops, min_bytes=2**20, max_bytes=8 * 2**20, factor=2.0, budget_s=budget_s, device="cpu")
    directory = RunDirectory.create_or_resume(path, config.document())
    assert run_on_network(network, directory, kind="collectives", timeout_s=TIMEOUT_S) == 0
    return read_measurements(directory)


def fits_of(measurements: Measurements) -> dict[str, Fit]:
    fits = {fit.op: fit for fit in fit_collectives(measurements.rows)}
    assert all(row["num_wrong"] == 0 and row["num_nodes"] == row["num_ranks"] for row in measurements.rows)
    assert {row["backend"] for row in measurements.rows} == {"gloo"}
    assert measurements.versions["interface"] == "TCP/eth0"
    return fits


def test_the_payload_share_is_that_of_full_ethernet_frames() -> None:
    assert payload_frac(1500) == pytest.approx(1448 / 1514)
    assert payload_frac(9000) == pytest.approx(8948 / 9014)


@pytest.mark.timeout(180)
def test_the_fit_finds_the_rate_that_each_link_was_given(tmp_path: Path) -> None:
    with ShapedNetwork(("a", "b")) as network:
        for rate in RATES_BYTES_PER_S:
            network.shape("a", rate)
            network.shape("b", rate)
            fits = fits_of(measured(network, tmp_path / f"{rate:.0f}", "broadcast", "all-reduce", budget_s=8.0))
            for op in ("broadcast", "all-reduce"):
                assert fits[op].bytes_per_s == pytest.approx(rate * payload_frac(), rel=0.05), (op, rate)


@pytest.mark.timeout(120)
def test_a_ring_is_no_faster_than_its_slowest_link(tmp_path: Path) -> None:
    slow = 30e6
    with ShapedNetwork(("a", "b", "c"), rate_bytes_per_s=100e6) as network:
        network.shape("c", slow)
        fit = fits_of(measured(network, tmp_path / "run", "all-reduce", budget_s=7.0))["all-reduce"]
    # A bound, not a rate: on a busy machine a ring over uneven links was seen to reach half of the slow one (why is not
    # known); over even links the rate is held to 5 % above.
    assert 0.4 * slow < fit.bytes_per_s < 1.05 * slow * payload_frac()


def has_delay() -> bool:
    """Whether the kernel has netem, found out without the code under test."""
    add = ["ip", "link", "add", "swdelay0", "type", "bridge"]
    delay = ["tc", "qdisc", "add", "dev", "swdelay0", "root", "netem", "delay", "1ms"]
    subprocess.run(add, check=True)
    try:
        return subprocess.run(delay, capture_output=True, check=False).returncode == 0
    finally:
        subprocess.run(["ip", "link", "del", "swdelay0"], check=True)


def test_latency_shows_in_alpha_or_is_refused_where_the_kernel_has_no_delay(tmp_path: Path) -> None:
    latency = 30e-3
    network = ShapedNetwork(("a", "b"), rate_bytes_per_s=50e6, latency_s=latency)
    if not has_delay():
        with pytest.raises(EnvironmentFailedError, match="sch_netem"):
            network.up()
        return
    with network:
        fit = fits_of(measured(network, tmp_path / "run", "send-recv", budget_s=8.0))["send-recv"]
    assert fit.alpha_high_s >= latency
