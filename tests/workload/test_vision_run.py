"""The configuration of a vision run: the recipe's rates, what is refused, and that a stored one reads back the same."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from scalewright.errors import ConfigError, DocumentError
from scalewright.workload.vision_run import LargeBatchRecipe, VisionRun, from_document

BASE: dict[str, Any] = {
    "model_id": "tiny", "blocks": (1, 1, 1, 1), "width": 8, "num_classes": 10, "image_size": 32, "num_ranks": 2,
    "batch": 4, "epochs": 5, "steps_per_epoch": 6, "precision": "fp32",
}  # fmt: skip


@pytest.mark.parametrize(
    ("epochs_done", "rate"),
    [(0.0, 0.1), (2.5, 1.65), (5.0, 3.2), (29.99, 3.2), (30.0, 0.32), (60.0, 0.032), (80.0, 0.0032)],
)
def test_rates_of_the_large_batch_recipe(epochs_done: float, rate: float) -> None:
    """goyal2017: 0.1 for 256 images, so 3.2 for 8,192 after five epochs, a tenth of it after 30, 60 and 80."""
    assert LargeBatchRecipe().rate(epochs_done=epochs_done, global_batch=8192) == pytest.approx(rate)


@pytest.mark.parametrize("batch", [16, 256])
def test_a_batch_up_to_the_base_needs_no_warm_up(batch: int) -> None:
    recipe = LargeBatchRecipe()
    rates = [recipe.rate(epochs_done=done, global_batch=batch) for done in (0.0, 1.0, 4.0, 6.0)]
    assert rates == pytest.approx([0.1 * batch / 256] * 4)


def test_rate_climbs_step_by_step() -> None:
    run = VisionRun(**{**BASE, "batch": 4096})
    rates = [run.rate(step) for step in range(30)]
    assert rates[0] == pytest.approx(0.1)
    assert all(later > earlier for earlier, later in pairwise(rates))


def test_a_stored_run_reads_back_the_same() -> None:
    run = VisionRun(**BASE, recipe=LargeBatchRecipe(label_smoothing=0.1), checkpoint_every="auto", data="/data/set")
    assert from_document(run.document(), where="here") == run
    assert run.steps == 30
    assert run.global_batch == 8
    assert int(run.layout.num_gpus) == 2


def test_work_of_resnet_50_is_that_of_the_published_network() -> None:
    run = VisionRun(**{**BASE, "blocks": (3, 4, 6, 3), "width": 64, "num_classes": 1000, "image_size": 224})
    assert run.spec.num_params == 25_557_032
    assert run.step_flop == pytest.approx(3 * 2 * 4.089e9 * 8, rel=1e-3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"precision": "fp8"}, "precision 'fp8' is not known"),
        ({"batch": 0}, "batch is 0"),
        ({"blocks": ()}, r"blocks \[\]"),
        ({"image_size": 33}, "image size 33"),
        ({"image_size": 16}, "image size 16"),
        ({"num_workers": -1}, "num_workers is -1"),
        ({"data": "made"}, "of how many images"),
        ({"copy_to": "ram"}, "synthetic images lie on the device"),
        ({"compile": "graphs"}, "one GPU"),
        ({"precision": "tf32", "device": "cpu"}, "needs a GPU"),
        ({"protocol": "epicure", "epochs": 3}, "fourth epoch"),
        ({"protocol": "epicure", "steps_per_epoch": 2}, "first and last step"),
        ({"checkpoint_every": "often"}, "checkpoint_every is 'often'"),
        ({"seed": -1}, "seed -1"),
    ],
)
def test_what_cannot_be_run_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        VisionRun(**{**BASE, **changed})


@pytest.mark.parametrize("changed", [{"momentum": 1.0}, {"base_rate": 0.0}, {"warmup_epochs": -1.0}])
def test_what_is_no_recipe_is_refused(changed: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        LargeBatchRecipe(**changed)  # type: ignore[arg-type]


def test_a_document_that_somebody_changed_is_refused() -> None:
    doc = VisionRun(**BASE).document()
    with pytest.raises(DocumentError, match="key 'width'"):
        from_document({**doc, "width": "wide"}, where="here")
