"""RDMA, IPoIB and TCP on one cluster, against UC Merced's averages.

Kind: measured. Published: data parallel, RDMA over IPoIB 2.51 and over TCP 4.79; model parallel 1.1 and 1.2 (Qi, Dai,
Chen, Lu, poster and IEEE Micro 44(2), 2024). Not public: layouts, device counts, iteration times. Assumed here: GPT-2
Medium and Large on all 16 A100 of Pinnacles, four samples a device in 16 bit, eager PyTorch; eight pipeline stages for
model parallel. The transports' shares are the poster's own Gbit/s; latencies, overlap and compute are not.
"""

from __future__ import annotations

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.machine import machine_from_system
from scalewright.planner.answer import answer
from scalewright.planner.question import Question
from scalewright.workload.layout import parse_layout
from scalewright.workload.model import from_catalog
from scalewright.workload.precision import recipe

CATALOG = Catalog((packaged_data(),))
WAYS = {"rdma": ("gpu", "rdma-host"), "ipoib": ("gpu", "ipoib"), "tcp": ("gpu-ethernet", "tcp")}
MODELS = ("gpt2-medium", "gpt2-large")


def iteration_s(model: str, way: str, layout: str) -> float:
    partition, transport = WAYS[way]
    run = answer(
        Question(
            spec=from_catalog(CATALOG.model(model)),
            machine=machine_from_system(CATALOG, "pinnacles", partition_name=partition, transport_name=transport),
            layout=parse_layout(layout),
            recipe=recipe("fp16"),
            stack=CATALOG.stack("eager"),
        )
    )
    return run.time_s


def mean_ratio(way: str, layout: str) -> float:
    return sum(iteration_s(m, way, layout) / iteration_s(m, "rdma", layout) for m in MODELS) / len(MODELS)


@pytest.mark.parametrize(("way", "published"), [("ipoib", 2.51), ("tcp", 4.79)])
def test_data_parallel(way: str, published: float) -> None:
    assert mean_ratio(way, "dp=16,mbs=4,gbs=64") == pytest.approx(published, rel=0.15)


@pytest.mark.parametrize(("way", "published"), [("ipoib", 1.1), ("tcp", 1.2)])
def test_model_parallel_hardly_minds(way: str, published: float) -> None:
    """Activations are few; what remains is mostly latency, of which the poster prints nothing."""
    assert mean_ratio(way, "pp=8,mbs=4,gbs=64") == pytest.approx(published, abs=0.15)
