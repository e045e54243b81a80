"""A step of a residual network: what it is made of, how it scales and what it keeps in memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs import room
from scalewright.costs.machine import machine_from_system
from scalewright.costs.setting import VisionSetting
from scalewright.costs.vision import (
    cast_bytes,
    conv_product_time_s,
    conv_time_s,
    exposed_exchange_s,
    gradient_bytes,
    host_time_s,
    image_wait_s,
    interval_s,
    layout_bytes_per_sample,
    move_time_s,
    norm_bytes_per_sample,
    num_images_per_s,
    slowest_supply,
    step_memory,
    step_time,
    supplies,
    unseen,
    vector_gain,
)
from scalewright.costs.vision.step import norm_backward_frac
from scalewright.workload.convolutions import Conv, resnet_convs, resnet_forward_flop
from scalewright.workload.layout import Layout
from scalewright.workload.precision import recipe
from scalewright.workload.training import Feed

CATALOG = Catalog((packaged_data(),))
SHAPE = CATALOG.model("resnet-50").conv
assert SHAPE is not None
H200 = machine_from_system(CATALOG, "generic-h200")
TRACKED = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "resnet_memory.jsonl"
NUM_OUTPUTS = sum(c.channels_out * c.out_size**2 for c in resnet_convs(SHAPE))
BLOCK_OUTPUTS = 3 * 256 * 56**2 + 4 * 512 * 28**2 + 6 * 1024 * 14**2 + 3 * 2048 * 7**2


def setting_of(
    precision: str = "bf16", *, compiled: bool = True, channels_last: bool = True, batch: int = 512, dp: int = 1
) -> VisionSetting:
    return VisionSetting(
        shape=SHAPE,
        machine=H200,
        layout=Layout(dp=dp, mbs=batch, gbs=dp * batch),
        recipe=recipe(precision),
        stack=CATALOG.stack("compiled" if compiled else "eager"),
        channels_last=channels_last,
    )


def rate(setting: VisionSetting) -> float:
    return float(num_images_per_s(step=step_time(setting), num_images=setting.num_images))


def test_order_of_the_four_rates_is_the_measured_one() -> None:
    plain32, compiled32 = (rate(setting_of("fp32", compiled=c, channels_last=False)) for c in (False, True))
    plain, best = rate(setting_of(compiled=False, channels_last=False)), rate(setting_of())
    assert plain32 < compiled32 < plain < best
    assert plain32 < rate(setting_of("tf32", compiled=False, channels_last=False)) < plain


def test_what_compiling_saves_in_32_bit_is_the_measured_time() -> None:
    """472.3 ms and 442.1 ms: only the norms' traffic differs, so this checks the count of passes alone."""
    plain, compiled = (step_time(setting_of("fp32", compiled=c, channels_last=False)).total for c in (False, True))
    assert plain - compiled == pytest.approx(512 / 1084 - 512 / 1158, rel=0.25)


def test_parts_add_up_and_scale_with_the_batch() -> None:
    step, double = step_time(setting_of(batch=256)), step_time(setting_of(batch=512))
    assert step.total == pytest.approx(sum(float(p.total) for p in step.parts))
    for name in ("convolution_forward", "convolution_backward", "norm_and_activation", "pool"):
        assert double.part(name).total == pytest.approx(2 * float(step.part(name).total), rel=0.02)
    assert double.part("update").total == step.part("update").total


def test_batches_may_be_a_column() -> None:
    batches = np.array([64, 512])
    columns = step_time(replace(setting_of(), layout=Layout(mbs=batches, gbs=batches)))
    assert columns.total[1] == pytest.approx(step_time(setting_of()).total)
    assert columns.at(0).total == pytest.approx(step_time(setting_of(batch=64)).total)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_convolutions_are_never_faster_than_their_arithmetic(precision: str) -> None:
    setting, step = setting_of(precision), step_time(setting_of(precision))
    flop = 512 * (sum(resnet_forward_flop(SHAPE).values()) - 2.0 * 2048 * 1000)
    least = flop / H200.sustained_flop_per_s(setting.recipe.matmul)
    stem = 512 * resnet_convs(SHAPE)[0].forward_flop / H200.sustained_flop_per_s(setting.recipe.matmul)
    assert step.part("convolution_forward").total >= least
    assert step.part("convolution_backward").total >= 2 * least - stem


def test_product_has_both_regimes() -> None:
    setting = setting_of()
    width, speed = 2.0, H200.hbm_bytes_per_s
    thin = conv_product_time_s(setting=setting, num_rows=1e6, num_columns=64, num_depth=64, num_elements=1e9, kernel=1)
    share = H200.constants.matrix_convolution_share.value
    assert thin == pytest.approx(width * 1e9 / speed / share)
    deep = conv_product_time_s(
        setting=setting, num_rows=1e6, num_columns=512, num_depth=4608, num_elements=1e6, kernel=3
    )
    assert deep == pytest.approx(2e6 * 512 * 4608 / H200.sustained_flop_per_s("bf16") / share, rel=0.05)


def test_first_convolution_needs_no_gradient_of_the_image() -> None:
    conv = Conv(part="x", channels_in=256, channels_out=256, kernel=3, in_size=28, out_size=28)
    first = conv_time_s(setting=setting_of(), conv=replace(conv, place="stem"))
    later = conv_time_s(setting=setting_of(), conv=conv)
    assert first[0] == later[0]
    assert later[1] == pytest.approx(2 * float(first[1]), rel=0.1)


def test_norm_traffic_is_the_counted_passes() -> None:
    assert NUM_OUTPUTS == 11_113_984
    eager = norm_bytes_per_sample(shape=SHAPE, compiled=False, width_bytes=2.0)
    compiled = norm_bytes_per_sample(shape=SHAPE, compiled=True, width_bytes=2.0)
    assert eager == 2.0 * (13 * NUM_OUTPUTS + 5 * BLOCK_OUTPUTS)
    assert compiled == 2.0 * (8 * NUM_OUTPUTS + 3 * BLOCK_OUTPUTS)


def test_gradients_hide_behind_the_backward_part_of_the_norms() -> None:
    assert norm_backward_frac(setting_of(compiled=False)) == 8 / 13
    assert norm_backward_frac(setting_of(compiled=True)) == 5 / 8


def test_layout_is_changed_only_for_matrix_units_fed_channels_first() -> None:
    assert layout_bytes_per_sample(shape=SHAPE, recipe=recipe("fp32"), channels_last=False) == 0
    assert layout_bytes_per_sample(shape=SHAPE, recipe=recipe("bf16"), channels_last=True) == 0
    turned = layout_bytes_per_sample(shape=SHAPE, recipe=recipe("bf16"), channels_last=False)
    assert layout_bytes_per_sample(shape=SHAPE, recipe=recipe("tf32"), channels_last=False) == 2 * turned > 0


def test_fewer_multiplications_help_vector_units_channels_first() -> None:
    """On a V100 the library is faster with channels first; on an H200, whose units are wider, products are faster."""
    first, last = (setting_of("fp32", channels_last=last) for last in (False, True))
    narrow = [replace(s, machine=machine_from_system(CATALOG, "generic-v100")) for s in (first, last)]
    assert vector_gain(narrow[0], kernel=1) == vector_gain(narrow[0], kernel=3) > vector_gain(narrow[1], kernel=3)
    assert vector_gain(first, kernel=1) < vector_gain(first, kernel=3) < vector_gain(narrow[0], kernel=3)
    assert vector_gain(last, kernel=1) > vector_gain(first, kernel=1)


@pytest.mark.parametrize(("kernel", "flop_per_s"), [(1, 27e12), (3, 44e12)])
def test_32_bit_convolutions_channels_first_on_an_h200_have_the_measured_rate(kernel: int, flop_per_s: float) -> None:
    """benchmarks/results/h200_operators.jsonl: all convolutions of ResNet-50 in the library, by kernel."""
    setting = setting_of("fp32", channels_last=False)
    convs = [c for c in resnet_convs(SHAPE) if (c.kernel == 1) == (kernel == 1)]
    seconds = sum(float(sum(conv_time_s(setting=setting, conv=c))) for c in convs)
    flop = sum(512 * c.forward_flop * (2 if c.place == "stem" else 3) for c in convs)
    assert flop / seconds == pytest.approx(flop_per_s, rel=0.1)


def test_a_small_batch_does_not_shrink_the_kernels_starts() -> None:
    """H200, bf16 in a graph: 28.4 ms for 192 images and 67.9 to 69.8 for 512 leave 4 ms that do not shrink."""
    graphs = replace(setting_of(), stack=CATALOG.stack_of_own_run("graphs"))
    small, large = (step_time(replace(graphs, layout=Layout(mbs=b, gbs=b))) for b in (192, 512))
    fixed_s = float(small.total) - 192 * (float(large.total) - float(small.total)) / (512 - 192)
    assert fixed_s == pytest.approx(4.1e-3, rel=0.4)
    assert small.part("gaps").total == large.part("gaps").total


def test_a_library_fuses_norms_without_a_compilers_slower_sums() -> None:
    eager, compiled = (setting_of("fp16", compiled=c) for c in (False, True))
    library = replace(compiled, library_norms=True)
    times = [float(step_time(s).part("norm_and_activation").total) for s in (library, compiled, eager)]
    assert times == sorted(times)
    assert times[1] / times[0] == pytest.approx(H200.constants.compiled_norm_factor.value)
    assert not library.folds


def test_pytorchs_own_pooling_is_as_slow_as_measured() -> None:
    """10.9 us of an image on an H200 (benchmarks/results/h200_calibration.json), in 16 and in 32 bit."""
    for precision in ("bf16", "tf32"):
        pool = step_time(setting_of(precision, compiled=False)).part("pool")
        assert float(pool.total) / 512 == pytest.approx(10.9e-6, rel=0.05)
    assert float(step_time(setting_of()).part("pool").total) / 512 < 2e-6, "folded where it is compiled"


def test_images_come_as_fast_as_the_slowest_of_workers_storage_and_files() -> None:
    storage = CATALOG.storage("leonardo-fast")
    setting = replace(setting_of(dp=8), feed=Feed(num_loaders=4))
    assert [s.name for s in supplies(setting, None)] == ["workers"]
    workers = slowest_supply(setting, storage)
    assert (workers.name, workers.num_images_per_s) == ("workers", 8 * 4 / H200.constants.image_loader_time.value)
    many = replace(setting, feed=Feed(num_loaders=10_000, one_file_each=True))
    assert slowest_supply(many, storage).name == "files"
    assert image_wait_s(setting=setting, step_s=1e3, source=storage) == 0
    waits_s = float(image_wait_s(setting=setting, step_s=0.1, source=storage))
    assert waits_s == pytest.approx(8 * 512 / float(workers.num_images_per_s) - 0.1)


def test_channels_first_kernels_are_no_faster_in_16_bit_on_an_h200() -> None:
    """Where memory is fast, elements are the limit; a V100's memory is slower than its kernels."""
    wide, narrow = (setting_of(p, channels_last=False) for p in ("fp32", "bf16"))
    assert move_time_s(setting=narrow, num_elements=1e9) > 0.75 * float(move_time_s(setting=wide, num_elements=1e9))
    v100 = machine_from_system(CATALOG, "generic-v100")
    wide, narrow = (replace(s, machine=v100) for s in (wide, replace(narrow, recipe=recipe("fp16"))))
    half = 0.5 * float(move_time_s(setting=wide, num_elements=1e9))
    assert move_time_s(setting=narrow, num_elements=1e9) == pytest.approx(half)
    last = replace(narrow, machine=H200, channels_last=True)
    assert move_time_s(setting=last, num_elements=1e9) < 0.6 * float(move_time_s(setting=wide, num_elements=1e9))


def test_casts_are_small_and_only_under_mixed_precision() -> None:
    assert cast_bytes(setting_of("fp32")) == cast_bytes(setting_of("tf32")) == 0
    step = step_time(setting_of(batch=256))
    assert 0 < float(step.part("casts").total) < 0.01 * float(step.total)


def test_small_batches_wait_for_the_host() -> None:
    small, large = step_time(setting_of(batch=8)), step_time(setting_of())
    assert small.total == pytest.approx(host_time_s(setting_of()))
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
    step = step_time(setting_of(dp=16 * H200.gpus_per_node))
    busy_s = sum(float(part.total) for part in step.parts if part.name not in ("host", "stragglers", "data"))
    assert step.part("stragglers").total == pytest.approx(busy_s * 4 * H200.constants.straggler_growth.value)


def test_memory_is_what_pytorch_counts() -> None:
    """benchmarks/vision_memory.py: PyTorch's memory tracker over a whole step of the same network."""
    for line in TRACKED.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        shape = CATALOG.model(row["model"]).conv
        assert shape is not None
        setting = replace(setting_of("bf16" if row["autocast"] else "fp32", batch=row["batch"]), shape=shape)
        memory = step_memory(setting)
        assert float(memory.total) == pytest.approx(row["peak_bytes"], rel=0.01), row
        # The tracker counts the weights that autocast keeps in 16 bit as activations.
        kept = float(memory.part("activations").total) + float(memory.part("cast_weights").total)
        assert kept == pytest.approx(row["activation_bytes"], rel=0.03), row


def test_memory_says_which_batches_published_runs_could_use() -> None:
    """Largest batches in DLPerf (V100 16 GB: 128 in FP32, 256 with AMP) and EPICURE's (512 on 80 GiB, FP32 as well)."""

    def shown(precision: str, batch: int) -> float:
        held = float(step_memory(setting_of(precision, batch=batch, dp=8)).total)
        taken = room.least_reserved_bytes(machine=H200, allocated_bytes=held, num_gpus=8)
        return float(room.device_bytes(machine=H200, reserved_bytes=taken, num_communicators=1.0))

    assert shown("fp32", 128) < 16 * 2**30
    assert shown("bf16", 256) < 16 * 2**30
    assert shown("fp32", 256) > 16 * 2**30
    assert shown("bf16", 384) > 16 * 2**30
    assert shown("fp32", 512) < 80 * 2**30


def test_interval_is_wider_for_what_no_run_was_fitted_on() -> None:
    setting = setting_of()
    other = replace(setting, machine=machine_from_system(CATALOG, "generic-mi300x"))
    assert unseen(setting) == []
    assert unseen(other) == [
        "no fitted vision run used mi300x",
        "no fitted vision run used a convolution library of AMD",
    ]
    narrow, wide = (interval_s(time_s=1.0, setting=one) for one in (setting, other))
    assert wide[0] < narrow[0] < 1.0 < narrow[1] < wide[1]


def test_gradients_are_those_of_the_parameters() -> None:
    assert gradient_bytes(SHAPE) == 4 * 25_557_032
