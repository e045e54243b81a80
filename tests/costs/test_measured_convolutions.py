"""Convolutions as they were measured take the places of modelled ones; others are scaled by those like them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from calibration_cases import GPU_VALUES, calibration
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.machine.calibrated import machine_from_calibration
from scalewright.costs.machine.measured_convolutions import convolutions_of, folded_stem
from scalewright.costs.setting import VisionSetting
from scalewright.costs.vision import conv_time_s, norm_time_s, pool_time_s
from scalewright.costs.vision.convolution import outputs
from scalewright.workload.convolutions import Conv, resnet_convs
from scalewright.workload.layout import Layout
from scalewright.workload.precision import recipe

CATALOG = Catalog((packaged_data(),))
SHAPE = CATALOG.model("resnet-50").conv
assert SHAPE is not None
CONVS = list(resnet_convs(SHAPE))
STEM = CONVS[0]


def row(conv: Conv, direction: str, time_s: float, **more: Any) -> dict[str, Any]:
    return {
        "op": "convolution", "precision": "bf16", "layout": "last", "batch": 128, "channels_in": conv.channels_in,
        "channels_out": conv.channels_out, "kernel": conv.kernel, "in_size": conv.in_size, "out_size": conv.out_size,
        "count": 1, "direction": direction, "time_s": time_s, **more,
    }  # fmt: skip


def moved(op: str, direction: str, bytes_per_s: float) -> dict[str, Any]:
    return {"op": op, "direction": direction, "precision": "bf16", "layout": "last", "batch": 128, "count": 2,
            "bytes": round(bytes_per_s), "time_s": 1.0}  # fmt: skip


def setting_of(*rows: dict[str, Any], images: int = 256, compiled: bool = False, **more: Any) -> VisionSetting:
    assert SHAPE is not None
    made = calibration(*GPU_VALUES, device="cuda", convolutions=rows, **more)
    return VisionSetting(
        shape=SHAPE, machine=machine_from_calibration(CATALOG, made), layout=Layout(mbs=images, gbs=images),
        recipe=recipe("bf16"), stack=CATALOG.stack("compiled" if compiled else "eager"), channels_last=True,
    )  # fmt: skip


def test_a_measured_convolution_takes_its_time_for_every_image() -> None:
    conv = CONVS[2]
    rows = [row(conv, d, time_s) for d, time_s in (("forward", 1e-3), ("input", 2e-3), ("weight", 3e-3))]
    forward, backward = conv_time_s(setting=setting_of(*rows), conv=conv)
    assert (forward, backward) == (pytest.approx(2e-3), pytest.approx(10e-3))


def test_another_of_the_same_kernel_is_as_far_from_its_model() -> None:
    conv, other = CONVS[2], next(c for c in CONVS if c.kernel == 3 and c.channels_in == 256)
    plain = setting_of(row(CONVS[1], "forward", 1e-3), row(CONVS[1], "input", 1e-3), row(CONVS[1], "weight", 1e-3))
    base = [conv_time_s(setting=replace(plain, layout=Layout(mbs=128, gbs=128)), conv=one) for one in (conv, other)]
    rows = [row(conv, "forward", 3.0 * float(base[0][0])), row(conv, "input", float(base[0][1])),
            row(conv, "weight", float(base[0][1]))]  # fmt: skip
    time_s = conv_time_s(setting=setting_of(*rows, images=128), conv=other)
    assert [float(time_s[i]) / float(base[1][i]) for i in range(2)] == [pytest.approx(3.0), pytest.approx(2.0)]


def test_a_compiled_step_folds_its_stem() -> None:
    folded = folded_stem(STEM)
    assert (folded.channels_in, folded.kernel, folded.in_size, folded.out_size) == (16, 4, 115, 112)
    rows = [row(STEM, d, 8e-3) for d in ("forward", "weight")] + [row(folded, d, 1e-3) for d in ("forward", "weight")]
    assert conv_time_s(setting=setting_of(*rows), conv=STEM)[0] == pytest.approx(16e-3)
    assert conv_time_s(setting=setting_of(*rows, compiled=True), conv=STEM) == (
        pytest.approx(2e-3),
        pytest.approx(2e-3),
    )


def test_norms_and_activations_cross_memory_at_their_own_rates() -> None:
    rates = {("norm", "forward"): 1e12, ("norm", "backward"): 2e12, ("activation", "forward"): 4e12,
             ("activation", "backward"): 3e12}  # fmt: skip
    setting = setting_of(*(moved(op, d, rate) for (op, d), rate in rates.items()))
    every, active = sum(map(outputs, CONVS)), sum(outputs(c) for c in CONVS if c.place != "projection")
    added = sum(outputs(c) for c in CONVS if c.place == "end")
    per_image = every * (3 / 1e12 + 5 / 2e12) + active * (2 / 4e12 + 3 / 3e12) + 5 * added / 4.3e12
    assert norm_time_s(setting) == pytest.approx(256 * 2 * per_image, rel=1e-6)
    assert float(norm_time_s(replace(setting, stack=CATALOG.stack("compiled")))) < float(norm_time_s(setting))


def test_pooling_is_as_measured_unless_it_is_folded() -> None:
    setting = setting_of(moved("pool", "forward", 1e12), moved("pool", "backward", 0.5e12))
    assert pool_time_s(setting) == pytest.approx(256 * 2 * outputs(STEM) * 1.25 * (1 / 1e12 + 1 / 0.5e12))
    assert float(pool_time_s(replace(setting, stack=CATALOG.stack("compiled")))) < float(pool_time_s(setting))


def test_a_gradient_that_no_time_was_left_for_is_not_free() -> None:
    conv, whole = CONVS[2], next(c for c in CONVS if c.kernel == 3 and c.channels_in == 256)
    rows = [row(whole, d, 1e-3) for d in ("forward", "input", "weight")]
    partly = [row(conv, d, 1e-6) for d in ("forward", "weight")]
    assert conv_time_s(setting=setting_of(*rows, *partly), conv=conv) == conv_time_s(
        setting=setting_of(*rows), conv=conv
    )


def test_half_a_measurement_is_none() -> None:
    assert not convolutions_of([]).are_measured
    assert not convolutions_of([row(CONVS[2], "forward", 1e-3)]).are_measured
