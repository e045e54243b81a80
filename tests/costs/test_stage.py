"""What an RL step adds: scoring passes, moved state, weight sync, and what hides what."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties.cases import MODELS, setting
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs import compute, layer, stage, step
from scalewright.costs.generation import Load, Serving, load_time
from scalewright.costs.machine import Machine, machine_from_hardware, machine_from_system
from scalewright.workload.lengths import LengthDistribution, LogNormalLength, fixed
from scalewright.workload.precision import RECIPES

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
        weights_bytes=size, num_tensors=tensors, num_trainers=256, num_generators=256, num_devices=512,
        tp=tp, machine=cluster(),
    )  # fmt: skip
    assert 0.25 <= one / through_one_s <= 1.5
    assert 0.1 <= peer / peer_s <= 1.0
    assert one / peer > 5


def test_weight_sync_of_a_7b_model_takes_what_verl_prints() -> None:
    """Measured: 0.12 s from 4 to 4 H20 without the checkpoint engine (verl docs/advance/fully_async.md)."""
    h20 = machine_from_hardware(
        CATALOG, gpu="h20", gpus_per_node=8, scale_up_bytes_per_s=None, network_bytes_per_s_per_gpu=50e9
    )
    spec = MODELS["llama3-8b"].transformer
    seconds = stage.gather_broadcast_time_s(
        weights_bytes=7.6e9 * 2, num_tensors=stage.num_synced_tensors(spec), num_devices=8, machine=h20
    )
    assert seconds == pytest.approx(0.12, rel=0.35)


@settings(deadline=None)
@given(size=st.floats(1e9, 1e12), faster=st.floats(1.0, 8.0))
def test_sync_is_never_slower_on_a_faster_network(size: float, faster: float) -> None:
    weights = {"weights_bytes": size, "num_tensors": 300}
    slow, fast = cluster(), cluster(50e9 * faster)
    both = [stage.gather_broadcast_time_s(num_devices=64, machine=m, **weights) for m in (slow, fast)]
    assert both[1] <= both[0]
    both = [
        stage.peer_to_peer_time_s(num_trainers=64, num_generators=64, num_devices=128, tp=8, machine=m, **weights)
        for m in (slow, fast)
    ]
    assert both[1] <= both[0]


def test_state_moves_to_the_host_and_back() -> None:
    machine = machine_from_system(CATALOG, "generic-h100")
    rate = machine.constants.rl_move_share.value * (machine.host_link_bytes_per_s or 0.0)
    assert stage.state_move_s(state_bytes=rate, machine=machine) == pytest.approx(2.0)


def test_a_copy_over_several_hosts_takes_longer_for_each_iteration() -> None:
    rack = machine_from_system(CATALOG, "generic-gb200-nvl72")  # one scale-up domain, hosts of four devices
    inside, across = (stage.framework_step_s(num_gpus=n, machine=rack) for n in (4, 8))
    assert across > inside > 0.0


def test_experts_in_a_loop_take_time_for_each_of_them() -> None:
    case = {"num_layers": 4.0, "num_micro_batches": 16.0, "num_passes": 1.0, "pp": 1, "machine": cluster()}
    one, many = (stage.expert_loop_s(num_experts=n, **case) for n in (1.0, 16.0))
    assert many == pytest.approx(16.0 * one)


@settings(deadline=None)
@given(rollout=st.floats(1.0, 1e3), training=st.floats(1.0, 1e3), chunks=st.integers(1, 16))
def test_waits_are_between_nothing_and_the_whole_rollout(rollout: float, training: float, chunks: int) -> None:
    def waited(*, num_chunks: int, is_ahead: bool) -> float:
        return stage.waited_rollout_s(
            rollout_s=rollout, training_s=training, num_chunks=num_chunks, is_ahead=is_ahead
        )  # fmt: skip

    assert waited(num_chunks=1, is_ahead=False) == pytest.approx(rollout)
    assert waited(num_chunks=1, is_ahead=True) == pytest.approx(max(rollout - training, 0.0))
    in_parts = waited(num_chunks=chunks, is_ahead=False)
    assert waited(num_chunks=1, is_ahead=True) - 1e-9 <= in_parts <= rollout + 1e-9


def generator() -> Serving:
    return Serving(
        shape=MODELS["llama3-8b"].transformer, machine=cluster(), stack=CATALOG.stack("megatron-core"),
        recipe=RECIPES["bf16"], tp=1, weight_bytes=2.0, cache_bytes=2.0,
    )  # fmt: skip


def stale_frac(answers: LengthDistribution, staleness: float) -> float:
    load = Load(num_requests=64, prompts=fixed(100), answers=answers, num_at_once=64.0)
    return stage.stale_rollout_frac(generator(), load, staleness_frac=staleness)


def test_staleness_hides_the_tail() -> None:
    def ratio(staleness: float, *, spread: float = 1.5) -> float:
        return stale_frac(LogNormalLength(num_mean=1000.0, cv=spread, num_max=16000.0), staleness)

    assert ratio(0.0) == pytest.approx(1.0)
    assert 1.0 > ratio(0.1) > ratio(0.3) >= ratio(0.5)
    assert ratio(0.3, spread=0.5) > ratio(0.3, spread=1.5)
    assert stale_frac(fixed(1000), 0.5) == 1.0, "no tail to hide"


@settings(deadline=None, max_examples=40)
@given(cv=st.floats(0.1, 2.0), times=st.floats(1.0, 2.0), staleness=st.floats(0.05, 1.0), longest=st.floats(2.0, 16.0))
def test_a_longer_tail_is_never_faster_with_staleness(
    cv: float, times: float, staleness: float, longest: float
) -> None:
    def time_s(answers: LengthDistribution) -> float:
        load = Load(num_requests=64, prompts=fixed(100), answers=answers, num_at_once=64.0)
        whole = float(load_time(generator(), load)[0].total)
        return whole * stage.stale_rollout_frac(generator(), load, staleness_frac=staleness)

    before = LogNormalLength(num_mean=1000.0, cv=cv, num_max=1000.0 * longest)
    for after in (replace(before, cv=cv * times), replace(before, num_max=1000.0 * longest * times)):
        assert time_s(after) >= time_s(before) * (1.0 - 1e-9)


def test_weights_by_way_of_a_file_are_read_by_every_copy() -> None:
    rates = {"write_bytes_per_s": 1e10, "read_bytes_per_s": 1e10}
    one, four = (stage.file_time_s(weights_bytes=1e10, num_copies=n, **rates) for n in (1.0, 4.0))
    assert (one, four) == (pytest.approx(2.0), pytest.approx(5.0))
