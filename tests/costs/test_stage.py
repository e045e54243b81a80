"""What an RL step adds: scoring passes, weight sync, state by mode, host memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties.cases import MODELS, setting
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs import compute, layer, stage, step
from scalewright.costs.hostmem import host_memory, pinned_bytes
from scalewright.costs.machine import Machine, machine_from_hardware
from scalewright.workload.model import from_catalog
from scalewright.workload.precision import recipe

CATALOG = Catalog((packaged_data(),))
CONSTANTS = CATALOG.constants()


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
    asked = {"weights_bytes": size, "num_tensors": 300}
    slow, fast = cluster(), cluster(50e9 * faster)
    both = [stage.gather_broadcast_time_s(num_devices=64, machine=m, **asked) for m in (slow, fast)]
    assert both[1] <= both[0]
    both = [
        stage.peer_to_peer_time_s(num_trainers=64, num_generators=64, tp=8, machine=m, **asked) for m in (slow, fast)
    ]
    assert both[1] <= both[0]


def test_adapters_of_llama_3_8b() -> None:
    # rank 16 on all seven matrices of a layer: 41,943,040, as PEFT prints.
    assert stage.num_lora_params(shape=MODELS["llama3-8b"].transformer, rank=16) == 41_943_040


def test_full_state_of_70b_does_not_fit_four_80_gb_devices() -> None:
    state = stage.trained_state(num_params=70e9, num_adapter_params=0.0, recipe=recipe("fp16"), mode="full")
    assert float(state.total) == 1120e9
    assert float(state.total) > 4 * 80e9


def test_modes_keep_less_in_their_order() -> None:
    adapters = stage.num_lora_params(shape=from_catalog(CATALOG.model("llama3-70b")).transformer, rank=16)
    sizes = [
        float(stage.trained_state(num_params=70e9, num_adapter_params=adapters, recipe=recipe("bf16"), mode=m).total)
        for m in ("full", "offload", "lora")
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == pytest.approx(140e9, rel=0.05)


def test_adam_of_70b_on_the_host_does_not_fit_a_perlmutter_node() -> None:
    params = from_catalog(CATALOG.model("llama3-70b")).num_params
    share = stage.offloaded_bytes(num_params=params / 4, recipe=recipe("bf16"), mode="offload", num_weight_copies=0)
    assert 4 * share == pytest.approx(847e9, rel=1e-3)
    node = next(p for p in CATALOG.system("perlmutter").partitions if p.id == "gpu-80")
    asked = host_memory(
        num_devices=4, offloaded_bytes_per_device=share, checkpoint_bytes_per_device=0.0, num_loaders=2,
        batch_bytes=0.0, num_prefetched=2, constants=CONSTANTS,
    )  # fmt: skip
    assert float(asked.total) > node.host_memory.value
    others = ("full", "lora")
    assert {
        stage.offloaded_bytes(num_params=1e9, recipe=recipe("bf16"), mode=m, num_weight_copies=2) for m in others
    } == {0.0}  # type: ignore[arg-type]


@settings(deadline=None)
@given(num=st.integers(1, 8), moved=st.floats(0, 1e12), kept=st.floats(0, 1e12), loaders=st.integers(0, 8))
def test_host_memory_is_that_of_its_devices(num: int, moved: float, kept: float, loaders: int) -> None:
    def asked(devices: int) -> float:
        return float(
            host_memory(
                num_devices=devices, offloaded_bytes_per_device=moved, checkpoint_bytes_per_device=kept,
                num_loaders=loaders, batch_bytes=1e6, num_prefetched=2, constants=CONSTANTS,
            ).total
        )  # fmt: skip

    assert asked(num) == pytest.approx(num * asked(1))
    assert asked(1) >= moved + kept


def test_pinned_batches_are_linear_in_what_is_prefetched() -> None:
    assert pinned_bytes(batch_bytes=1e6, num_prefetched=2, num_loaders=4) == 8e6
