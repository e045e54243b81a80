"""Host memory of a node: what is moved there, what saving beside training keeps there, and what it has room for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties.cases import cost_of, setting
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.hostmem import (
    host_memory,
    offload_transfer_s,
    offloaded_bytes,
    pinned_bytes,
    training_host_memory,
)
from scalewright.costs.setting import Setting
from scalewright.workload.model import from_catalog
from scalewright.workload.precision import recipe
from scalewright.workload.training import FULL, Feed, TrainingMode

CATALOG = Catalog((packaged_data(),))
CONSTANTS = CATALOG.constants()
OFFLOAD, LORA = TrainingMode(name="offload"), TrainingMode(name="lora")


def case(mode: TrainingMode = FULL, **changed: Any) -> Setting:
    arguments: dict[str, Any] = {"model": "llama3-8b", "precision": "bf16", "zero": 3, "dp": 8, "gbs": 8}
    return replace(setting(**(arguments | changed)), mode=mode)


def test_adam_of_70b_on_the_hosts_does_not_fit_a_perlmutter_node() -> None:
    params = from_catalog(CATALOG.model("llama3-70b")).num_params
    share = offloaded_bytes(num_params=params / 4, recipe=recipe("bf16"), mode=OFFLOAD, num_weight_copies=0)
    assert 4 * share == pytest.approx(16 * params)
    node = next(p for p in CATALOG.system("perlmutter").partitions if p.id == "gpu-80")
    needed = host_memory(
        num_devices=4, offloaded_bytes_per_device=share, checkpoint_bytes_per_device=0.0, num_loaders=2,
        batch_bytes=0.0, num_prefetched=2, constants=CONSTANTS,
    )  # fmt: skip
    assert float(needed.total) > node.host_memory.value


@pytest.mark.parametrize("mode", [FULL, LORA], ids=str)
def test_other_modes_move_nothing(mode: TrainingMode) -> None:
    assert offloaded_bytes(num_params=1e9, recipe=recipe("bf16"), mode=mode, num_weight_copies=2) == 0.0


@settings(deadline=None)
@given(num=st.integers(1, 8), moved=st.floats(0, 1e12), kept=st.floats(0, 1e12), loaders=st.integers(1, 8))
def test_host_memory_is_that_of_its_devices(num: int, moved: float, kept: float, loaders: int) -> None:
    def needed_bytes(devices: int) -> float:
        return float(
            host_memory(
                num_devices=devices, offloaded_bytes_per_device=moved, checkpoint_bytes_per_device=kept,
                num_loaders=loaders, batch_bytes=1e6, num_prefetched=2, constants=CONSTANTS,
            ).total
        )  # fmt: skip

    assert needed_bytes(num) == pytest.approx(num * needed_bytes(1))
    assert needed_bytes(1) >= moved + kept


def test_pinned_batches_are_linear_in_what_is_prefetched() -> None:
    assert pinned_bytes(batch_bytes=1e6, num_prefetched=2, num_loaders=4) == 8e6


def test_six_bytes_of_each_parameter_cross_the_link() -> None:
    link: dict[str, Any] = {"recipe": recipe("bf16"), "host_bytes_per_s": 20e9}
    assert offload_transfer_s(num_params=1e9, **link) == pytest.approx(6e9 / 20e9)
    assert offload_transfer_s(num_params=1e9, **(link | {"host_bytes_per_s": None})) == 0.0


def test_saving_beside_training_keeps_one_copy_of_weights_and_state() -> None:
    plain = case()
    beside = replace(plain, feed=Feed(async_checkpoint=True))
    more = float(training_host_memory(beside).total) - float(training_host_memory(plain).total)
    # the node's eight devices hold the model once: 14 bytes of each parameter, tables counted on every first stage
    params = from_catalog(CATALOG.model("llama3-8b")).num_params
    assert more == pytest.approx(14 * params, rel=0.01)


def test_a_host_too_small_makes_a_step_not_fit() -> None:
    given_ = case(OFFLOAD)
    needs = float(training_host_memory(given_).total)
    for room, fits in ((needs * 1.01, 1.0), (needs * 0.99, 0.0)):
        machine = replace(given_.machine, host_memory_bytes=room)
        cost = cost_of(replace(given_, machine=machine))
        assert (cost.fits, cost.fits_host) == (fits, fits)


def test_columns_have_the_host_memory_of_each_layout() -> None:
    columns = case(OFFLOAD, dp=np.array([4, 8, 16]), gbs=np.array([16, 16, 16]))
    memory = training_host_memory(columns)
    for i, dp in enumerate((4, 8, 16)):
        assert float(memory.at(i).total) == pytest.approx(
            float(training_host_memory(case(OFFLOAD, dp=dp, gbs=16)).total)
        )
