"""What an RL step adds: scoring passes and weight sync."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties.cases import MODELS, setting
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs import compute, layer, stage, step
from scalewright.costs.machine import Machine, machine_from_hardware

CATALOG = Catalog((packaged_data(),))


def cluster(network_bytes_per_s: float = 50e9) -> Machine:
    return machine_from_hardware(
        CATALOG, gpu="h800-sxm", gpus_per_node=8, scale_up_bytes_per_s=None,
        network_bytes_per_s_per_gpu=network_bytes_per_s,
    )  # fmt: skip


def test_scoring_is_about_a_third_of_a_training_step() -> None:
    case = setting(model="llama3-8b", machine="generic-h100", precision="bf16", tp=2, mbs=1, gbs=64, sp=True)
    scoring = stage.scoring_time_s(
        layer_forward_s=float(layer.layer_times(case).passes.forward_s),
        head_forward_s=float(compute.head_times(case).forward_s),
        num_layers=float(case.num_layers),
        num_micro_batches=float(case.num_micro_batches),
        pp=1,
    )
    assert 0.25 <= scoring / float(step.step_time(case).total) <= 0.40


@settings(deadline=None)
@given(m=st.integers(1, 512), pp=st.sampled_from([1, 2, 4, 8]))
def test_scoring_waits_once_for_the_stages_to_fill(m: int, pp: int) -> None:
    def seconds(num: int, stages: int) -> float:
        return stage.scoring_time_s(
            layer_forward_s=1e-3, head_forward_s=0.0, num_layers=8, num_micro_batches=num, pp=stages
        )

    assert seconds(m, pp) - seconds(m, 1) == pytest.approx((pp - 1) * 8e-3)


def test_tensors_of_a_published_checkpoint() -> None:
    # model.safetensors.index.json of Llama 3 8B lists 291 tensors.
    assert stage.num_synced_tensors(MODELS["llama3-8b"].transformer) == 291


# ASystem (Ring-1T report): parameters x bytes, matrices, devices of a generator copy (assumed), seconds peer to peer
# and through one rank. The layouts and the network are not published: 8 NICs of 400 Gbit/s a node are assumed.
ASYSTEM = [(100e9 * 2.0, 40_000, 8, 4.0, 30.0), (1e12 * 1.0, 60_000, 32, 6.0, 60.0)]


@pytest.mark.parametrize(("size", "tensors", "tp", "peer_s", "through_one_s"), ASYSTEM, ids=["100B fp16", "1T fp8"])
def test_weight_sync_is_of_asystems_order(
    size: float, tensors: int, tp: int, peer_s: float, through_one_s: float
) -> None:
    """Kind: measured, layouts assumed. Peer to peer is a bound from below: up to ten times under what was measured."""
    one = stage.gather_broadcast_time_s(weights_bytes=size, num_tensors=tensors, num_devices=256, machine=cluster())
    peer = stage.peer_to_peer_time_s(
        weights_bytes=size, num_tensors=tensors, num_trainers=256, num_generators=256, tp=tp, machine=cluster()
    )
    assert 0.25 <= one / through_one_s <= 1.5
    assert 0.1 <= peer / peer_s <= 1.0
    assert one / peer > 5


@settings(deadline=None)
@given(size=st.floats(1e9, 1e12), faster=st.floats(1.0, 8.0))
def test_sync_is_never_slower_on_a_faster_network(size: float, faster: float) -> None:
    weights = {"weights_bytes": size, "num_tensors": 300}
    slow, fast = cluster(), cluster(50e9 * faster)
    both = [stage.gather_broadcast_time_s(num_devices=64, machine=m, **weights) for m in (slow, fast)]
    assert both[1] <= both[0]
    both = [
        stage.peer_to_peer_time_s(num_trainers=64, num_generators=64, tp=8, machine=m, **weights) for m in (slow, fast)
    ]
    assert both[1] <= both[0]
