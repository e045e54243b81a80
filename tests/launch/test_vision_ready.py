"""A vision run is made ready: what is left open follows from the data, the machine and the protocol."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.data.imagenet_like import ImageSet, make_images
from scalewright.launch.prepare import vision_setup as vision
from scalewright.launch.prepare.outlook import RunTooLargeError
from scalewright.launch.prepare.vision_setup import VisionRequest, prepare_vision_config, resolve_vision_run
from scalewright.workload.model import from_catalog

CATALOG = Catalog((packaged_data(),))
REQUEST = VisionRequest(spec=from_catalog(CATALOG.model("resnet-50")), ranks=2, device="cpu")


def test_synthetic_images_on_a_cpu() -> None:
    run = resolve_vision_run(CATALOG, REQUEST)
    assert (run.num_ranks, run.batch, run.epochs, run.steps_per_epoch) == (2, 16, 1, 50)
    assert (run.precision, run.compile, run.channels_last, run.num_workers) == ("fp32", "off", True, 0)
    assert (run.blocks, run.num_classes, run.image_size) == ((3, 4, 6, 3), 1000, 224)


def test_epicures_protocol_trains_five_epochs() -> None:
    assert resolve_vision_run(CATALOG, replace(REQUEST, protocol="epicure")).epochs == 5


def test_an_epoch_is_the_images_that_are_not_held_out(tmp_path: Path) -> None:
    make_images(tmp_path / "set", ImageSet(num_images=78, num_classes=2), to="shards")
    request = replace(REQUEST, data=str(tmp_path / "set"), batch=5, workers=3)
    run = resolve_vision_run(CATALOG, request)
    assert run.steps_per_epoch == 75 // 10
    assert (run.data, run.num_workers) == (str((tmp_path / "set").resolve()), 3)
    assert (
        resolve_vision_run(CATALOG, replace(request, options={"passes_per_epoch": 13})).steps_per_epoch == 75 * 13 // 10
    )


def test_a_set_with_a_validation_folder_is_trained_on_whole(tmp_path: Path) -> None:
    for name in ("train", "val"):
        make_images(tmp_path / name, ImageSet(num_images=40, num_classes=2), to="folder")
    assert resolve_vision_run(CATALOG, replace(REQUEST, data=str(tmp_path), batch=10)).steps_per_epoch == 2


@pytest.mark.parametrize(
    ("precision", "ranks", "compiled", "channels_last"),
    [("auto", 1, "graphs", True), ("fp16", 1, "graphs", True), ("bf16", 4, "default", True),
     ("fp32", 1, "graphs", True), ("tf32", 1, "graphs", True)],
)  # fmt: skip
def test_the_fastest_known_way_on_gpus(
    monkeypatch: pytest.MonkeyPatch, precision: str, ranks: int, compiled: str, channels_last: bool
) -> None:
    monkeypatch.setattr(vision, "device_here", lambda request, num_ranks: "cuda")
    run = resolve_vision_run(CATALOG, replace(REQUEST, device="cuda", ranks=ranks, precision=precision, batch=512))
    assert (run.compile, run.channels_last) == (compiled, channels_last)
    assert run.precision == ("bf16" if precision == "auto" else precision)


@pytest.mark.parametrize(
    ("gpu", "batch"),
    [
        ("NVIDIA A100-SXM4-40GB", 128),
        ("NVIDIA A100-SXM-64GB", 256),
        ("NVIDIA A100-SXM4-80GB", 512),
        ("NVIDIA H200", 512),
    ],
)
def test_batch_follows_the_memory_as_epicures_does(monkeypatch: pytest.MonkeyPatch, gpu: str, batch: int) -> None:
    monkeypatch.setattr("scalewright.here.devices.visible_gpus", lambda: [gpu])
    assert resolve_vision_run(CATALOG, replace(REQUEST, device="cuda", ranks=1)).batch == batch


def test_what_does_not_fit_is_said() -> None:
    request = replace(REQUEST, ranks=1, batch=8192)
    with pytest.raises(RunTooLargeError, match=r"8192 images a rank does not fit in memory .*smaller --batch"):
        prepare_vision_config(CATALOG, resolve_vision_run(CATALOG, request), system="generic-v100", budget_s=1e9)


def test_decoding_is_in_the_prediction(tmp_path: Path) -> None:
    make_images(tmp_path / "set", ImageSet(num_images=60, num_classes=2), to="folder")
    fast = prepare_vision_config(
        CATALOG, resolve_vision_run(CATALOG, replace(REQUEST, ranks=1)), system="generic-h200", budget_s=1e6
    )
    from_files = resolve_vision_run(CATALOG, replace(REQUEST, ranks=1, data=str(tmp_path / "set"), workers=1))
    fed = prepare_vision_config(CATALOG, from_files, system="generic-h200", budget_s=1e6)
    assert fast.outlook is not None
    assert fed.outlook is not None
    assert fed.outlook.step_s > 2 * fast.outlook.step_s
