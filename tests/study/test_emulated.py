"""Links scaled to a small machine: exchange takes the share of a step that it takes on the cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.machine import machine_from_system
from scalewright.launch.outlook import outlook
from scalewright.study.kinds.emulated import Emulated, link_bytes_per_s, over_links
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


def asked(share: float, link_share: float = 1.0) -> Emulated:
    return Emulated(model="gpt2-tiny", layout="dp=2,mbs=4,gbs=8", communication_share=share, link_share=link_share)


@pytest.mark.parametrize("share", [0.4, 0.6, 0.8])
def test_the_fastest_link_gives_the_share_asked_for(share: float) -> None:
    rate = link_bytes_per_s(CATALOG, RUN, MACHINE, asked(share))
    time = outlook(CATALOG, RUN, over_links(MACHINE, rate), start_s=0.0).prediction.cost.time
    assert float(time.part("communication").total) / float(time.total) == pytest.approx(share, abs=0.01)


def test_other_links_are_slower_in_their_ratio() -> None:
    fastest, slower = (link_bytes_per_s(CATALOG, RUN, MACHINE, asked(0.6, s)) for s in (1.0, 0.15))
    assert slower == pytest.approx(0.15 * fastest)


def test_the_rate_follows_from_data_parallel_steps_whatever_the_point() -> None:
    split = replace(RUN, layout=parse_layout("pp=2,mbs=4,gbs=8"))
    assert link_bytes_per_s(CATALOG, split, MACHINE, asked(0.6)) == link_bytes_per_s(CATALOG, RUN, MACHINE, asked(0.6))
