"""Parts of the vision benchmark, without ranks: network, optimizer, images, order, and which steps count."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from scalewright.catalog.library import open_catalog
from scalewright.catalog.types import ConvShape
from scalewright.data.imagenet_like import ImageSet, make_images
from scalewright.data.opening import open_samples
from scalewright.data.samples import Samples
from scalewright.errors import ConfigError, DocumentError
from scalewright.run.breakdown import TimedStep
from scalewright.run.vision.counted import counted_steps
from scalewright.run.vision.images import centre_box, random_box, training_pixels, validation_pixels
from scalewright.run.vision.model import Bottleneck, Stem, build
from scalewright.run.vision.optimizer import Momentum
from scalewright.run.vision.pool import folded_pool
from scalewright.run.vision.source import ImageSource, check_classes, rank_batches, rank_share
from scalewright.run.vision.validate import score_sums
from scalewright.workload.convolutions import resnet_forward_flop
from scalewright.workload.vision_run import VisionRun

CPU = torch.device("cpu")
BASE: dict[str, Any] = {
    "model_id": "tiny", "blocks": (1, 1, 1, 1), "width": 8, "num_classes": 10, "image_size": 32, "num_ranks": 1,
    "batch": 4, "epochs": 1, "steps_per_epoch": 6, "precision": "fp32", "device": "cpu",
}  # fmt: skip


def tiny(**changed: Any) -> VisionRun:
    return VisionRun(**{**BASE, **changed})


def network(model: str) -> ConvShape:
    shape = open_catalog().model(model).conv
    assert shape is not None
    return shape


# --- the network -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "num_params"),
    [("resnet-18", 11_689_512), ("resnet-34", 21_797_672), ("resnet-50", 25_557_032), ("resnet-101", 44_549_160)],
)
def test_networks_have_the_published_parameters_and_the_cost_models_work(model: str, num_params: int) -> None:
    shape = network(model)
    with torch.device("meta"):
        built = build(shape, channels_last=True, folds=False, device=torch.device("meta"), seed=0)
        images = torch.zeros(1, 224, 224, 3, dtype=torch.uint8)
    assert sum(p.numel() for p in built.parameters()) == num_params
    with FlopCounterMode(display=False) as counted:
        built(images)
    assert counted.get_total_flops() == sum(resnet_forward_flop(shape).values())


def test_weights_start_as_the_recipe_says() -> None:
    model = build(tiny().shape, channels_last=True, folds=False, device=CPU, seed=3)
    blocks = [module for module in model.modules() if isinstance(module, Bottleneck)]
    assert len(blocks) == 4
    for block in blocks:
        assert not block.bn3.weight.any()
        assert block.bn1.weight.eq(1).all()
    assert not model.fc.bias.any()
    assert float(model.fc.weight.detach().std()) == pytest.approx(0.01, rel=0.1)
    again = build(tiny().shape, channels_last=False, folds=False, device=CPU, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_folded_stem_and_pooling_are_the_same_network() -> None:
    shape, images = tiny().shape, torch.randint(256, (4, 32, 32, 3), dtype=torch.uint8)
    plain, folded = (
        build(shape, channels_last=True, folds=folds, device=CPU, seed=0).double() for folds in (False, True)
    )
    labels = torch.tensor([0, 1, 2, 3])
    losses = [functional.cross_entropy(model(images), labels) for model in (plain, folded)]
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-6)
    for loss in losses:
        loss.backward()
    for (name, mine), other in zip(plain.named_parameters(), folded.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, msg=lambda text, name=name: f"{name}: {text}")


@settings(max_examples=25, deadline=None)
@given(side=st.integers(1, 6), channels=st.integers(1, 3), seed=st.integers(0, 1000))
def test_folded_pooling_agrees_with_pytorchs_even_where_values_tie(side: int, channels: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-2, 3, (2, channels, 2 * side, 2 * side), generator=generator).float()
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    pooled, expected = folded_pool(mine), functional.max_pool2d(theirs, 3, 2, 1)
    assert torch.equal(pooled, expected)
    grad = torch.randn(pooled.shape, generator=generator)
    pooled.backward(grad)
    expected.backward(grad)
    torch.testing.assert_close(mine.grad, theirs.grad)


def test_folded_stem_sums_the_same_products() -> None:
    plain, folded = Stem(8, folds=False), Stem(8, folds=True)
    folded.load_state_dict(plain.state_dict())
    x = torch.randn(2, 3, 32, 48)
    torch.testing.assert_close(plain(x), folded(x))


# --- the optimizer ---------------------------------------------------------------------------------------------------


def test_update_is_pytorchs_sgd_with_norms_left_undecayed() -> None:
    run = tiny(batch=512, steps_per_epoch=2, epochs=8)
    mine, theirs = (build(run.shape, channels_last=True, folds=False, device=CPU, seed=1) for _ in range(2))
    norms = [p for m in theirs.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()]
    rest = [p for p in theirs.parameters() if not any(p is norm for norm in norms)]
    decay = run.recipe.weight_decay
    reference = torch.optim.SGD(
        [{"params": rest, "weight_decay": decay}, {"params": norms, "weight_decay": 0.0}], lr=1.0, momentum=0.9
    )
    optimizer = Momentum(run, mine)
    generator = torch.Generator().manual_seed(0)
    for step in range(4):
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        optimizer.set_rate(step)
        optimizer.apply(optimizer.gradients())
        for group in reference.param_groups:
            group["lr"] = run.rate(step)
        reference.step()
    for (name, a), b in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


# --- images ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    path = tmp_path_factory.mktemp("images") / "set"
    return open_samples(make_images(path, ImageSet(num_images=30, num_classes=3), to="folder"))


@settings(max_examples=200, deadline=None)
@given(width=st.integers(1, 3000), height=st.integers(1, 3000), seed=st.integers(0, 2**32))
def test_random_part_lies_in_the_image(width: int, height: int, seed: int) -> None:
    left, top, right, bottom = random_box(width, height, np.random.default_rng(seed))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


def test_middle_is_centred_and_seven_eighths_of_the_shorter_side() -> None:
    assert centre_box(512, 256) == (144.0, 16.0, 368.0, 240.0)


def test_same_seed_epoch_and_number_give_the_same_pixels(samples: Samples) -> None:
    def pixels(epoch: int) -> np.ndarray:
        return training_pixels(samples, 4, size=64, rng=np.random.default_rng([0, epoch, 4]))[0]

    assert pixels(0).shape == (64, 64, 3)
    assert np.array_equal(pixels(0), pixels(0))
    assert not np.array_equal(pixels(0), pixels(1))


def test_decoding_at_a_smaller_size_gives_nearly_the_same_picture(samples: Samples) -> None:
    content, label = samples.read(0)
    pixels, same_label = validation_pixels(samples, 0, size=48)
    with Image.open(io.BytesIO(content)) as image:
        whole = np.asarray(
            image.convert("RGB").resize((48, 48), Image.Resampling.BILINEAR, box=centre_box(*image.size))
        )
    assert label == same_label
    assert np.abs(pixels.astype(float) - whole).mean() < 4.0  # steps of 256; another image differs by tens


def test_greyscale_and_png_images_have_three_channels(tmp_path: Path) -> None:
    for name, mode in (("a.png", "RGBA"), ("b.jpg", "L"), ("c.png", "P")):
        (tmp_path / "class").mkdir(exist_ok=True)
        Image.new(mode, (60, 50)).save(tmp_path / "class" / name)
    samples = open_samples(tmp_path)
    for index in range(3):
        assert validation_pixels(samples, index, size=32)[0].shape == (32, 32, 3)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda content: content[: len(content) // 2], "cut off"),
        (lambda content: b"", "is empty"),
        (lambda content: b"GIF89a" + content, "neither a JPEG nor a PNG"),
        (lambda content: content[:300] + bytes(200) + content[500:600] + b"\xff\xd9", "cannot be decoded"),
    ],
)
def test_damaged_image_is_named(tmp_path: Path, samples: Samples, spoil: Any, why: str) -> None:
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "spoilt.jpg").write_bytes(spoil(samples.read(0)[0]))
    samples = open_samples(tmp_path)
    with pytest.raises(DocumentError, match=rf"spoilt\.jpg.*{why}"):
        training_pixels(samples, 0, size=32, rng=np.random.default_rng(0))
    with pytest.raises(DocumentError, match=rf"spoilt\.jpg.*{why}"):
        validation_pixels(samples, 0, size=32)


# --- order and counting ----------------------------------------------------------------------------------------------


def source_of(samples: Samples, *, num_held_out: int) -> ImageSource:
    held = np.arange(num_held_out, dtype=np.int64) * 2
    return ImageSource(training=samples, validation=samples, held_out=held, is_shared=True)


def test_ranks_take_together_what_one_rank_takes_alone(samples: Samples) -> None:
    source = source_of(samples, num_held_out=4)
    alone, shared = tiny(batch=8, steps_per_epoch=3), tiny(batch=4, num_ranks=2, steps_per_epoch=3)
    order = source.epoch(alone, 2)
    assert np.array_equal(order, source.epoch(shared, 2))
    assert not set(order) & set(source.held_out)
    assert len(set(order)) == 24
    assert not np.array_equal(order, source.epoch(alone, 3))
    single = rank_batches(order, alone, rank=0, first_step=0)
    ranks = [rank_batches(order, shared, rank=rank, first_step=0) for rank in (0, 1)]
    for step, images in enumerate(single):
        assert sorted(images) == sorted([*ranks[0][step], *ranks[1][step]])
    assert np.array_equal(rank_batches(order, alone, rank=0, first_step=2)[0], single[2])


def test_several_passes_read_every_image_as_often(samples: Samples) -> None:
    source = source_of(samples, num_held_out=0)
    order = source.epoch(tiny(batch=10, steps_per_epoch=9, passes_per_epoch=3), 0)
    assert set(np.bincount(order)) == {3}


def test_every_held_out_image_is_scored_once(samples: Samples) -> None:
    source, run = source_of(samples, num_held_out=11), tiny(batch=4, num_ranks=2)
    scored = [image for rank in (0, 1) for images in rank_share(source.held_out, run, rank=rank) for image in images]
    assert sorted(scored) == list(source.held_out)


def test_more_classes_than_the_network_has_are_refused(samples: Samples) -> None:
    check_classes(samples, tiny(num_classes=3))
    with pytest.raises(ConfigError, match="3 classes, more than the 2"):
        check_classes(samples, tiny(num_classes=2))


def test_scores_are_counted_over_the_batch() -> None:
    scores = torch.tensor([[9.0, 1, 2, 3, 4, 5, 6], [9.0, 8, 7, 6, 5, 0, 1], [0.0, 1, 2, 3, 4, 5, 6]])
    loss, first, best, count = score_sums(scores, torch.tensor([0, 4, 0])).tolist()
    assert (first, best, count) == (1, 2, 3)
    assert loss == pytest.approx(float(functional.cross_entropy(scores, torch.tensor([0, 4, 0]), reduction="sum")))


def timed(times_s: list[float]) -> list[TimedStep]:
    return [TimedStep(step=i, wall_s=t, thread_cpu_s=t, data_wait_s=0.0) for i, t in enumerate(times_s)]


def test_epicures_protocol_counts_the_fourth_epoch_but_its_ends() -> None:
    run = tiny(epochs=5, steps_per_epoch=6, protocol="epicure")
    times = [1.0] * 18 + [9.0, 2.0, 3.0, 4.0, 50.0, 9.0] + [1.0] * 6
    counted = counted_steps(run, timed(times))
    assert counted is not None
    assert (counted.first, counted.last, counted.median_s) == (19, 22, 3.5)


def test_steady_protocol_counts_from_where_times_are_even() -> None:
    counted = counted_steps(tiny(steps_per_epoch=40), timed([9.0] * 5 + [1.0] * 35))
    assert counted is not None
    assert (counted.first, counted.last, counted.median_s) == (5, None, 1.0)
    assert counted_steps(tiny(), []) is None
