"""A step of a residual network: what it is made of, how it scales and what it keeps in memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.machine import machine_from_system
from scalewright.costs.vision import (
    VisionSetting,
    cast_bytes,
    conv_product_time_s,
    conv_time_s,
    exposed_exchange_s,
    gradient_bytes,
    host_time_s,
    layout_bytes_per_sample,
    move_time_s,
    norm_bytes_per_sample,
    num_images_per_s,
    unseen_vision,
    vision_interval_s,
    vision_step_time,
)
from scalewright.costs.vision_memory import vision_memory
from scalewright.workload.convolutions import Conv, resnet_convs, resnet_forward_flop
from scalewright.workload.precision import recipe

CATALOG = Catalog((packaged_data(),))
SHAPE = CATALOG.model("resnet-50").conv
assert SHAPE is not None
H200 = machine_from_system(CATALOG, "generic-h200")
TRACKED = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "resnet_memory.jsonl"
NUM_OUTPUTS = sum(c.channels_out * c.out_size**2 for c in resnet_convs(SHAPE))
BLOCK_OUTPUTS = 3 * 256 * 56**2 + 4 * 512 * 28**2 + 6 * 1024 * 14**2 + 3 * 2048 * 7**2


def asked(
    precision: str = "bf16", *, compiled: bool = True, channels_last: bool = True, batch: int = 512
) -> VisionSetting:
    return VisionSetting(
        shape=SHAPE,
        machine=H200,
        recipe=recipe(precision),
        num_images=batch,
        compiled=compiled,
        channels_last=channels_last,
    )


def rate(setting: VisionSetting) -> float:
    return float(num_images_per_s(step=vision_step_time(setting), num_images=setting.num_images))


def test_order_of_the_four_rates_is_the_measured_one() -> None:
    plain32, compiled32 = (rate(asked("fp32", compiled=c, channels_last=False)) for c in (False, True))
    plain, best = rate(asked(compiled=False, channels_last=False)), rate(asked())
    assert plain32 < compiled32 < plain < best
    assert plain32 < rate(asked("tf32", compiled=False, channels_last=False)) < plain


def test_what_compiling_saves_in_32_bit_is_the_measured_time() -> None:
    """472.3 ms and 442.1 ms: only the norms' traffic differs, so this checks the count of passes alone."""
    plain, compiled = (vision_step_time(asked("fp32", compiled=c, channels_last=False)).total for c in (False, True))
    assert plain - compiled == pytest.approx(512 / 1084 - 512 / 1158, rel=0.25)


def test_parts_add_up_and_scale_with_the_batch() -> None:
    step, double = vision_step_time(asked(batch=256)), vision_step_time(asked(batch=512))
    assert step.total == pytest.approx(sum(float(p.total) for p in step.parts))
    for name in ("convolution_forward", "convolution_backward", "norm_and_activation", "pool"):
        assert double.part(name).total == pytest.approx(2 * float(step.part(name).total), rel=0.02)
    assert double.part("update").total == step.part("update").total


def test_batches_may_be_a_column() -> None:
    columns = vision_step_time(replace(asked(), num_images=np.array([64, 512])))
    assert columns.total[1] == pytest.approx(vision_step_time(asked()).total)
    assert columns.at(0).total == pytest.approx(vision_step_time(asked(batch=64)).total)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_convolutions_are_never_faster_than_their_arithmetic(precision: str) -> None:
    setting, step = asked(precision), vision_step_time(asked(precision))
    flop = 512 * (sum(resnet_forward_flop(SHAPE).values()) - 2.0 * 2048 * 1000)
    least = flop / H200.sustained_flop_per_s(setting.recipe.matmul)
    stem = 512 * next(resnet_convs(SHAPE)).forward_flop / H200.sustained_flop_per_s(setting.recipe.matmul)
    assert step.part("convolution_forward").total >= least
    assert step.part("convolution_backward").total >= 2 * least - stem


def test_product_has_both_regimes() -> None:
    setting = asked()
    width, speed = 2.0, H200.hbm_bytes_per_s
    thin = conv_product_time_s(setting=setting, num_rows=1e6, num_columns=64, num_depth=64, num_elements=1e9)
    share = H200.constants.matrix_convolution_share.value
    assert thin == pytest.approx(width * 1e9 / speed / share)
    deep = conv_product_time_s(setting=setting, num_rows=1e6, num_columns=512, num_depth=4608, num_elements=1e6)
    assert deep == pytest.approx(2e6 * 512 * 4608 / H200.sustained_flop_per_s("bf16") / share, rel=0.05)


def test_first_convolution_needs_no_gradient_of_the_image() -> None:
    conv = Conv(part="x", channels_in=256, channels_out=256, kernel=3, in_size=28, out_size=28)
    first = conv_time_s(setting=asked(), conv=replace(conv, place="stem"))
    later = conv_time_s(setting=asked(), conv=conv)
    assert first[0] == later[0]
    assert later[1] == pytest.approx(2 * float(first[1]), rel=0.1)


def test_norm_traffic_is_the_counted_passes() -> None:
    assert NUM_OUTPUTS == 11_113_984
    eager = norm_bytes_per_sample(shape=SHAPE, compiled=False, width_bytes=2.0)
    compiled = norm_bytes_per_sample(shape=SHAPE, compiled=True, width_bytes=2.0)
    assert eager == 2.0 * (13 * NUM_OUTPUTS + 5 * BLOCK_OUTPUTS)
    assert compiled == 2.0 * (8 * NUM_OUTPUTS + 3 * BLOCK_OUTPUTS)


def test_layout_is_changed_only_for_matrix_units_fed_channels_first() -> None:
    assert layout_bytes_per_sample(shape=SHAPE, recipe=recipe("fp32"), channels_last=False) == 0
    assert layout_bytes_per_sample(shape=SHAPE, recipe=recipe("bf16"), channels_last=True) == 0
    turned = layout_bytes_per_sample(shape=SHAPE, recipe=recipe("bf16"), channels_last=False)
    assert layout_bytes_per_sample(shape=SHAPE, recipe=recipe("tf32"), channels_last=False) == 2 * turned > 0


def test_fewer_multiplications_help_vector_units_channels_first_only() -> None:
    first, last = (vision_step_time(asked("fp32", channels_last=last)) for last in (False, True))
    gain = H200.constants.vector_convolution_gain.value
    assert gain > 1.0
    assert last.part("convolution_forward").total == pytest.approx(
        gain * float(first.part("convolution_forward").total)
    )


def test_channels_first_kernels_are_no_faster_in_16_bit_on_an_h200() -> None:
    """Where memory is fast, elements are the limit; a V100's memory is slower than its kernels."""
    wide, narrow = (asked(p, channels_last=False) for p in ("fp32", "bf16"))
    assert move_time_s(setting=narrow, num_elements=1e9) > 0.75 * float(move_time_s(setting=wide, num_elements=1e9))
    v100 = machine_from_system(CATALOG, "generic-v100")
    wide, narrow = (replace(s, machine=v100) for s in (wide, replace(narrow, recipe=recipe("fp16"))))
    half = 0.5 * float(move_time_s(setting=wide, num_elements=1e9))
    assert move_time_s(setting=narrow, num_elements=1e9) == pytest.approx(half)
    last = replace(narrow, machine=H200, channels_last=True)
    assert move_time_s(setting=last, num_elements=1e9) < 0.6 * float(move_time_s(setting=wide, num_elements=1e9))


def test_casts_are_small_and_only_under_mixed_precision() -> None:
    assert cast_bytes(asked("fp32")) == cast_bytes(asked("tf32")) == 0
    step = vision_step_time(asked(batch=256))
    assert 0 < float(step.part("casts").total) < 0.01 * float(step.total)


def test_small_batches_wait_for_the_host() -> None:
    small, large = vision_step_time(asked(batch=8)), vision_step_time(asked())
    assert small.total == pytest.approx(host_time_s(asked()))
    assert large.part("host").total == 0


def exposed(all_reduce_s: float, backward_s: float, last_bucket_s: float = 0.0) -> float:
    return float(
        exposed_exchange_s(all_reduce_s=all_reduce_s, last_bucket_s=last_bucket_s, backward_s=backward_s, machine=H200)
    )


def test_exchange_hides_behind_the_backward_pass_but_its_last_bucket() -> None:
    c = H200.constants
    assert exposed(1.0, 0.0) == 1.0
    slowed = c.overlap_cost.value * 0.1
    assert exposed(0.1, 10.0) == pytest.approx(slowed)
    assert exposed(0.1, 10.0, last_bucket_s=0.03) == pytest.approx(0.03 + slowed)
    assert exposed(0.1, 0.0, last_bucket_s=5.0) == pytest.approx(0.1), "never more than all of it"


def test_nodes_wait_for_the_slowest() -> None:
    one, many = vision_step_time(asked()), vision_step_time(asked(), num_nodes=16)
    assert many.total == pytest.approx(float(one.total) * (1.0 + 4 * H200.constants.straggler_growth.value))


def test_memory_is_what_pytorch_counts() -> None:
    """benchmarks/vision_memory.py: PyTorch's memory tracker over a whole step of the same network."""
    for line in TRACKED.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        shape = CATALOG.model(row["model"]).conv
        assert shape is not None
        setting = replace(asked("bf16" if row["autocast"] else "fp32", batch=row["batch"]), shape=shape)
        found = vision_memory(setting)
        assert float(found.total) == pytest.approx(row["peak_bytes"], rel=0.01), row
        # The tracker counts the weights that autocast keeps in 16 bit as activations.
        kept = float(found.part("activations").total) + float(found.part("cast_weights").total)
        assert kept == pytest.approx(row["activation_bytes"], rel=0.03), row


def test_memory_says_which_batches_published_runs_could_use() -> None:
    """Largest batches in DLPerf (V100 16 GB: 128 in FP32, 256 with AMP) and EPICURE's (512 on 80 GiB, FP32 as well)."""

    def reserved(precision: str, batch: int) -> float:
        c = H200.constants
        held = float(vision_memory(asked(precision, batch=batch), dp=8).total)
        return held * (1.0 + c.allocator_overhead.value) + c.device_reserve.value

    assert reserved("fp32", 128) < 16 * 2**30
    assert reserved("bf16", 256) < 16 * 2**30
    assert reserved("fp32", 256) > 16 * 2**30
    assert reserved("bf16", 384) > 16 * 2**30
    assert reserved("fp32", 512) < 80 * 2**30


def test_interval_is_wider_for_what_no_run_was_fitted_on() -> None:
    setting = asked()
    known = vision_interval_s(time_s=1.0, setting=setting, num_unseen=0)
    strange = vision_interval_s(time_s=1.0, setting=setting, num_unseen=2)
    assert strange[0] < known[0] < 1.0 < known[1] < strange[1]
    other = replace(setting, machine=machine_from_system(CATALOG, "generic-mi300x"))
    assert unseen_vision(setting) == []
    assert unseen_vision(other) == ["no fitted vision run used mi300x"]


def test_gradients_are_those_of_the_parameters() -> None:
    assert gradient_bytes(SHAPE) == 4 * 25_557_032
