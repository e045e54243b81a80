"""Score the held-out images: every rank scores its share, and the sums are reduced over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from scalewright.run.vision.loader import ImageBatch
from scalewright.run.vision.session import VisionSession
from scalewright.run.vision.step import SHORT

NUM_BEST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    loss: float
    top_1_frac: float
    top_5_frac: float
    num_images: int


def validate(session: VisionSession, batches: Iterator[ImageBatch]) -> Scores | None:
    """Scores of all ranks together; None where no image is held out. Every rank must call this."""
    session.take_first_ranks_statistics()
    device, short = session.device, SHORT.get(session.run.precision)
    sums = torch.zeros(4, dtype=torch.float64, device=device)
    session.model.eval()
    try:
        with torch.no_grad(), torch.autocast(device.type, short, enabled=short is not None):
            for batch in batches:
                sums += score_sums(session.model(batch.images_BHWC).float(), batch.labels_B)
    finally:
        session.model.train()
    if dist.get_world_size() > 1:
        dist.all_reduce(sums)
    loss, first, best, count = sums.tolist()
    if not count:
        return None
    return Scores(loss=loss / count, top_1_frac=first / count, top_5_frac=best / count, num_images=int(count))


def score_sums(scores_BV: Tensor, labels_B: Tensor) -> Tensor:
    """Sum of the losses, images with the right class first, images with it among the first five, and images."""
    best = scores_BV.topk(min(NUM_BEST, scores_BV.shape[1])).indices == labels_B[:, None]
    loss = functional.cross_entropy(scores_BV, labels_B, reduction="sum")
    return torch.stack((loss, best[:, 0].sum(), best.sum(), torch.tensor(len(labels_B), device=loss.device))).double()
