"""Who waits for whom on a link: visible transfers come first, gradients hide behind what is left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from properties.cases import MACHINES, changed, cost_of, setting
from scalewright.costs.setting import Setting

ALL_HIDDEN = {"gradient_overlap": 1.0, "overlap_cost": 0.0}


def overlapping(given: Setting) -> Setting:
    """The same with constants under which gradients cost nothing as long as they fit behind the backward pass."""
    c = given.machine.constants
    update = {name: getattr(c, name).model_copy(update={"value": value}) for name, value in ALL_HIDDEN.items()}
    return replace(given, machine=replace(given.machine, constants=c.model_copy(update=update)))


def exchange_s(given: Setting) -> float:
    return float(cost_of(overlapping(given)).time.part("data_parallel").total)


def slower_tensor_links(given: Setting, factor: float) -> Setting:
    """Tensor-parallel sums take longer, gradients between nodes do not."""
    return replace(
        given, machine=replace(given.machine, scale_up_bytes_per_s=given.machine.scale_up_bytes_per_s / factor)
    )


def test_tensor_parallelism_takes_cover_from_gradients_on_its_links() -> None:
    """tp=2: four members of a gradient ring share a node, so the ring runs over the links of the sums."""
    shared = changed(setting(machine="selene"), tp=2, dp=64, gbs=64, zero=0)
    longer = slower_tensor_links(shared, 1.2)
    assert longer.machine.network_bytes_per_s_per_gpu is not None
    assert longer.machine.scale_up_bytes_per_s > 4 * longer.machine.network_bytes_per_s_per_gpu
    assert exchange_s(shared) > 0
    more_compute_s = float(cost_of(overlapping(longer)).time.part("tensor_parallel").total) - float(
        cost_of(overlapping(shared)).time.part("tensor_parallel").total
    )
    assert more_compute_s > 0
    # A longer micro-batch alone would hide more; its longer sums take half of that back.
    hidden_more_s = exchange_s(shared) - exchange_s(longer)
    assert hidden_more_s < 2.0 / 3.0 * more_compute_s


def test_gradients_that_never_enter_a_node_twice_keep_all_cover() -> None:
    """tp=8: one member a node, so sums inside the node and gradients between nodes use different wires."""
    apart = changed(setting(machine="selene"), tp=8, dp=64, gbs=64, zero=0)
    longer = slower_tensor_links(apart, 1.2)
    before, after = cost_of(overlapping(apart)).time, cost_of(overlapping(longer)).time
    more_s = float(after.part("tensor_parallel").total) - float(before.part("tensor_parallel").total)
    saved_s = float(before.part("data_parallel").total) - float(after.part("data_parallel").total)
    assert more_s > 0
    assert saved_s == pytest.approx(2.0 / 3.0 * more_s, rel=0.05)


def test_stage_messages_take_cover_from_gradients_between_nodes() -> None:
    """Slower messages between stages leave less time in which gradients are hidden."""
    slow = replace(MACHINES["selene"], network_bytes_per_s_per_gpu=2e9)  # or all gradients hide in either case
    staged = changed(setting(machine=slow), pp=4, dp=16, gbs=64, zero=0)
    c = staged.machine.constants
    visible = c.model_copy(update={"transfer_exposure": c.transfer_exposure.model_copy(update={"value": 1.0})})
    hidden = c.model_copy(update={"transfer_exposure": c.transfer_exposure.model_copy(update={"value": 0.0})})
    loud, still = (replace(staged, machine=replace(staged.machine, constants=x)) for x in (visible, hidden))
    assert exchange_s(loud) > exchange_s(still) > 0
