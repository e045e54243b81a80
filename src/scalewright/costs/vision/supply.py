"""How fast images reach the devices: workers that decode them, and the storage that they lie on."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from scalewright.catalog.types import Storage
from scalewright.costs import storage
from scalewright.costs.breakdown import FloatLike
from scalewright.costs.setting import VisionSetting

SupplyName = Literal["workers", "storage", "files"]


class Supply(NamedTuple):
    """One of the ways an image takes to a device, and its rate for all devices together."""

    name: SupplyName
    num_images_per_s: FloatLike


def supplies(setting: VisionSetting, source: Storage | None) -> tuple[Supply, ...]:
    """What workers prepare and what `source` delivers; without one, what workers prepare.

    Equation  workers: n k / p;  storage: B / S;  files: F where every image is one
    Source    PyTorch documentation, torch.utils.data: workers prefetch while the device computes; rates of `storage`
    Assumes   k workers on each of n devices decode one image in p seconds each; nothing is cached
    Checked   tests/costs/test_vision.py: the least of them is the rate of an epoch where devices are faster
    """
    feed, layout, c = setting.feed, setting.layout, setting.constants
    workers = Supply("workers", layout.dp * feed.num_loaders / c.image_loader_time.value)
    if source is None:
        return (workers,)
    nodes = np.ceil(setting.num_nodes)
    read = storage.job_bytes_per_s(storage=source, direction="read", num_nodes=nodes, constants=c)
    from_storage = Supply("storage", read / c.image_bytes.value)
    if not feed.one_file_each:
        return workers, from_storage
    files = storage.num_job_files_per_s(storage=source, num_nodes=nodes, constants=c)
    return workers, from_storage, Supply("files", files)


def slowest_supply(setting: VisionSetting, source: Storage | None) -> Supply:
    """The one that limits, of a single layout."""
    return min(supplies(setting, source), key=lambda supply: float(supply.num_images_per_s))


def image_wait_s(*, setting: VisionSetting, step_s: FloatLike, source: Storage | None) -> FloatLike:
    """What a step waits for its images, prepared beside the step before.

    Equation  max(0, n b / min over supplies - t)
    Source    PyTorch documentation, torch.utils.data
    Assumes   reading, decoding and computing overlap, so only the slowest is seen
    Checked   tests/planner/test_vision_command.py: Leonardo's 8 cores a device keep up in FP32, not in mixed precision
    """
    images = setting.layout.dp * setting.layout.mbs
    wait: FloatLike = 0.0
    for supply in supplies(setting, source):
        wait = np.maximum(wait, images / supply.num_images_per_s - step_s)
    return wait
