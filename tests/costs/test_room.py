"""Three figures of memory and the one decision about them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs import room
from scalewright.costs.footprint import device_bytes, needed_bytes, reserved_bytes, step_memory, update_bytes
from scalewright.costs.machine import machine_from_system
from scalewright.costs.setting import Setting
from scalewright.workload.layout import Layout
from scalewright.workload.model import from_shape
from scalewright.workload.named import resolve_model
from scalewright.workload.precision import recipe

CATALOG = Catalog((packaged_data(),))
MACHINE = machine_from_system(CATALOG, "generic-a100")
GIB = 2.0**30
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "h200_memory.jsonl"


def setting(stack: str = "megatron-core", precision: str = "bf16", **knobs: int) -> Setting:
    layout = Layout(**{"dp": 8, "mbs": 1, "gbs": 8, **knobs})  # type: ignore[arg-type]
    shape = resolve_model(CATALOG, "gpt2-large").transformer
    return Setting(
        shape=shape, machine=MACHINE, layout=layout, recipe=recipe(precision), stack=CATALOG.stack(stack)
    )  # fmt: skip


def test_what_is_within_the_models_error_of_the_limit_is_tight() -> None:
    """63.2 of 63.4 GiB is not called `fits`."""
    small = replace(MACHINE, memory_bytes=63.4 * GIB)
    assert room.room(small, 63.2 * GIB) == "tight"
    assert room.room(small, 63.5 * GIB) == "too large"
    assert room.room(small, room.comfortable_bytes(small)) == "fits"
    assert room.room(small, room.comfortable_bytes(small) * 1.001) == "tight"


def test_each_figure_holds_the_one_before() -> None:
    case = setting()
    used = step_memory(case)
    figures = [float(used.total), float(reserved_bytes(case, used)), float(device_bytes(case, used))]
    assert figures == sorted(set(figures))


def test_every_axis_with_several_ranks_has_a_communicator() -> None:
    """One of all ranks and one each; a single device has none, and shows its context only."""

    def outside(**knobs: int) -> float:
        case = setting(**knobs)
        used = step_memory(case)
        return float(device_bytes(case, used)) - float(reserved_bytes(case, used))

    alone, context = outside(dp=1, gbs=1), MACHINE.constants.device_context.value
    each = MACHINE.constants.communicator_memory.value
    assert alone == pytest.approx(context)
    assert outside(dp=8) == pytest.approx(context + 2 * each)
    assert outside(dp=2, tp=2, pp=2) == pytest.approx(context + 4 * each)


def test_the_update_of_deepspeed_copies_short_gradients() -> None:
    """fp16: 4 bytes a parameter, shared by ZeRO-1; bf16 gradients are summed in 32 bit already."""
    params = float(step_memory(setting("eager-unfused", "fp16", dp=1, gbs=1)).part("weights").total) / 2.0
    assert float(update_bytes(setting("eager-unfused", "fp16", dp=1, gbs=1))) == pytest.approx(4.0 * params)
    shared = float(update_bytes(setting("eager-unfused", "fp16", zero=1)))
    assert shared == pytest.approx(4.0 * params / 8 + 2e9)
    assert float(update_bytes(setting("eager-unfused", "bf16", dp=1, gbs=1))) == 0.0


def test_bf16_of_deepspeed_keeps_gradients_in_both_widths() -> None:
    """The chronicles of BLOOM: 4 bytes a parameter more than fp16, on every rank."""
    sizes = [step_memory(setting("eager-unfused", p, zero=1)).part("gradients").total for p in ("fp16", "bf16")]
    assert sizes[1] == pytest.approx(3.0 * sizes[0])


def test_an_allocator_gives_back_what_the_update_needs() -> None:
    """What is needed is below what is shown, since the update can have the place of the activations."""
    case = setting("eager-unfused", "fp16", mbs=8, gbs=64)
    used = step_memory(case)
    assert float(needed_bytes(case, used)) < float(device_bytes(case, used))


@pytest.mark.parametrize("gbs", [8, 32])
def test_steps_on_an_h200_with_and_without_accumulation(gbs: int) -> None:
    """benchmarks/gpu_memory.py: 54.3 and 59.6 GB allocated, 57.8 and 63.0 GB shown by nvidia-smi."""
    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    measured = next(row for row in rows if row["name"] == f"trainer-language-off-mbs=8,gbs={gbs}")
    case = Setting(
        shape=from_shape(measured["shape"]).transformer, machine=machine_from_system(CATALOG, "generic-h200"),
        layout=Layout(mbs=8, gbs=gbs), recipe=recipe("bf16"), stack=CATALOG.stack("eager"),
    )  # fmt: skip
    used = step_memory(case)
    assert float(used.total) == pytest.approx(measured["allocated_bytes"], rel=0.03)
    assert float(reserved_bytes(case, used)) == pytest.approx(measured["reserved_bytes"], rel=0.05)
    assert float(device_bytes(case, used)) == pytest.approx(measured["shown_bytes"], rel=0.05)


@pytest.mark.parametrize("stack", ["eager", "compiled", "scalewright"])
def test_gradients_wait_for_the_last_micro_batch(stack: str) -> None:
    """With one micro-batch they take the place of activations; with several they are there beside them."""
    one, four = (step_memory(setting(stack, dp=1, mbs=8, gbs=8 * n)) for n in (1, 4))
    params = float(one.part("weights").total) / 2.0
    assert float(one.part("gradients").total) == 0.0
    assert float(four.part("gradients").total) == pytest.approx(4.0 * params)


def test_fsdp_keeps_no_16_bit_weights_but_gathered_ones() -> None:
    """12 bytes a parameter and shard: 32-bit weights and two moments."""
    used = step_memory(setting("compiled", zero=3))
    assert float(used.part("weights").total) == 0.0
    assert float(used.part("gathered_weights").total) > 0.0
    assert float(step_memory(setting("scalewright", zero=3)).part("weights").total) > 0.0


def test_embeddings_count_as_layers_where_two_more_would_divide() -> None:
    """BLOOM's 70 layers on 12 pipeline ranks: 5 beside each table, 6 between; Llama 3 405B's 126 on 16 likewise."""
    shape = resolve_model(CATALOG, "gpt2-large").transformer
    for layers, pp in ((70, 12), (126, 16)):
        case = replace(setting(dp=1, pp=pp, gbs=64), shape=shape.model_copy(update={"layers": layers}))
        counts = [int(case.num_layers_on(rank)) for rank in range(pp)]
        assert counts == [(layers + 2) // pp - 1, *[(layers + 2) // pp] * (pp - 2), (layers + 2) // pp - 1]
        assert [int(case.num_layers_before(rank)) for rank in range(pp)] == [sum(counts[:i]) for i in range(pp)]
    uneven = replace(setting(dp=1, pp=4, gbs=64), shape=shape.model_copy(update={"layers": 13}))
    assert [int(uneven.num_layers_on(rank)) for rank in range(4)] == [4, 3, 3, 3]
