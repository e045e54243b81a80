"""What a device does in a ResNet's step: the points of a roofline."""

from __future__ import annotations

from collections.abc import Iterator

from scalewright.costs.roofline import Kind, Operation, Phase, product_cache_bytes
from scalewright.costs.setting import VisionSetting
from scalewright.costs.vision.convolution import conv_time_s, num_conv_elements
from scalewright.costs.vision.traffic import layout_bytes_per_sample, move_time_s, norm_bytes_per_sample, norm_time_s
from scalewright.workload.convolutions import Conv, resnet_convs


def operations(setting: VisionSetting) -> list[Operation]:
    """What a device does in a step, each kind of convolution with its place: the points of a roofline."""
    points: list[Operation] = []
    for conv in resnet_convs(setting.shape):
        points += _conv_operations(setting, conv)
    shape, w, b = setting.shape, setting.recipe.activation_bytes, float(setting.num_images)
    norm = b * norm_bytes_per_sample(shape=shape, compiled=setting.fuses_norms, width_bytes=w)
    turned = b * layout_bytes_per_sample(shape=shape, recipe=setting.recipe, channels_last=setting.channels_last)
    moved: tuple[tuple[str, Kind, float], ...] = (("norms", "elementwise", norm), ("layout change", "layout", turned))
    for name, kind, size in moved:
        if size > 0.0:
            is_norm = kind == "elementwise"
            time = float(norm_time_s(setting) if is_norm else move_time_s(setting=setting, num_elements=size / w))
            points.append(Operation(
                name=name, phase="forward", kind=kind, flop=size / w, traffic_bytes=size, cache_bytes=size,
                fresh_bytes=0.0, time_s=time, num_per_step=1.0,
            ))  # fmt: skip
    return points


def _conv_operations(setting: VisionSetting, conv: Conv) -> Iterator[Operation]:
    b, w = float(setting.num_images), setting.recipe.activation_bytes
    times = conv_time_s(setting=setting, conv=conv)
    once = w * float(num_conv_elements(setting=setting, conv=conv))
    through = product_cache_bytes(
        num_rows=b * conv.out_size**2, num_columns=conv.channels_out, num_depth=conv.kernel**2 * conv.channels_in,
        width_bytes=w,
    )  # fmt: skip
    kept = w * b * conv.in_size**2 * conv.channels_in
    passes: tuple[tuple[Phase, float, float], ...] = (
        ("forward", 1.0, w * conv.num_weights), ("backward", 1.0 if conv.place == "stem" else 2.0, kept),
    )  # fmt: skip
    for (phase, count, fresh), time in zip(passes, times, strict=True):
        yield Operation(
            name=f"{conv.kernel}x{conv.kernel} {conv.part}", phase=phase, kind="convolution",
            flop=count * b * conv.forward_flop, traffic_bytes=count * once, cache_bytes=count * max(through, once),
            fresh_bytes=fresh, time_s=float(time), num_per_step=1.0,
        )  # fmt: skip
