"""Two ranks with half a batch each train the network that one rank trains with the whole, norms counted by halves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from pool import RankPool

from scalewright.workload.vision_run import LargeBatchRecipe, VisionRun

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    made = RankPool()
    yield made
    made.close()


def document(**changed: Any) -> dict[str, Any]:
    run = VisionRun(
        **{
            "model_id": "tiny", "blocks": (1, 1, 1, 1), "width": 8, "num_classes": 10, "image_size": 32,
            "num_ranks": 2, "batch": 4, "epochs": 1, "steps_per_epoch": 4, "precision": "fp32", "device": "cpu",
            "recipe": LargeBatchRecipe(base_rate=1.0), **changed,
        }
    )  # fmt: skip
    return run.document()


def test_two_ranks_are_one_with_the_same_global_batch(pool: RankPool) -> None:
    doc = document()
    ((alone, expected),) = pool.run("jobs:train_images", doc, 2, num_ranks=1)
    (first, weights), (second, others) = pool.run("jobs:train_images", doc, 1, num_ranks=2)
    assert [(a + b) / 2 for a, b in zip(first, second, strict=True)] == pytest.approx(alone, rel=1e-4)
    assert alone[0] != pytest.approx(alone[-1], rel=1e-3)
    for mine, theirs, one in zip(weights, others, expected, strict=True):
        assert torch.equal(mine, theirs)
        torch.testing.assert_close(mine, one, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("num_images", [11, 12])
def test_scores_are_those_of_one_rank_that_scores_all(pool: RankPool, num_images: int) -> None:
    (alone,) = pool.run("jobs:score_images", document(num_ranks=1), num_images, num_ranks=1)
    first, second = pool.run("jobs:score_images", document(), num_images, num_ranks=2)
    assert first == second
    assert first[2] == num_images
    assert first == pytest.approx(alone, rel=1e-5)
