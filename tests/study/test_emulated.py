"""Links scaled to a small machine: exchange takes the share of a step that it takes on the cluster."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.machine import machine_from_system
from scalewright.launch.prepare.outlook import language_outlook
from scalewright.study.kinds.emulated import EmulatedPoint, link_bytes_per_s, over_links
from scalewright.study.points import open_study
from scalewright.study.report_builder import predicted_report
from scalewright.workload import language_run
from scalewright.workload.layout import parse_layout
from scalewright.workload.model import from_catalog

CATALOG = Catalog((packaged_data(),))
MACHINE = machine_from_system(CATALOG, "laptop")
RUN = language_run.resolve(
    from_catalog(CATALOG.model("gpt2-tiny")),
    parse_layout("dp=2,mbs=4,gbs=8"),
    seq_len=128,
    precision="fp32",
    device="cpu",
)


def point_of(share: float, link_share: float = 1.0) -> EmulatedPoint:
    return EmulatedPoint(model="gpt2-tiny", layout="dp=2,mbs=4,gbs=8", communication_share=share, link_share=link_share)


@pytest.mark.parametrize(("layout", "share"), [("dp=2", 0.4), ("dp=2", 0.6), ("dp=2", 0.8), ("pp=2", 0.03)])
def test_the_fastest_link_gives_the_share_asked_for(layout: str, share: float) -> None:
    run = replace(RUN, layout=parse_layout(f"{layout},mbs=4,gbs=16"))
    rate = link_bytes_per_s(CATALOG, run, MACHINE, point_of(share))
    time = language_outlook(CATALOG, run, over_links(MACHINE, rate), start_s=0.0).prediction.time
    assert float(time.part("communication").total) / float(time.total) == pytest.approx(share, abs=0.01)


def test_other_links_are_slower_in_their_ratio() -> None:
    fastest, slower = (link_bytes_per_s(CATALOG, RUN, MACHINE, point_of(0.6, s)) for s in (1.0, 0.15))
    assert slower == pytest.approx(0.15 * fastest)


def test_the_shipped_study_asks_for_the_shares_that_it_predicts_for_the_cluster() -> None:
    on_cluster: dict[str, list[float]] = {}
    for row in predicted_report(CATALOG, open_study(CATALOG, "interconnect")).points:
        if row.labels["transport"] == "rdma" and row.labels["parallel"] != "zero-3":
            on_cluster.setdefault(row.labels["parallel"], []).append(row.predicted["communication_frac"].value)
    here = open_study(CATALOG, "interconnect", is_measured=True)
    asked_for = {cell.values["parallel"]: cell.values["exchange"] for cell in here.combinations}
    assert set(asked_for) == set(on_cluster) == {"data", "model"}
    for parallel, share in asked_for.items():
        assert share == pytest.approx(statistics.mean(on_cluster[str(parallel)]), rel=0.1)
