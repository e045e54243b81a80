"""A small set of images in every format, for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

from scalewright.data.imagenet_like import ImageSet, make_images
from scalewright.data.samples import FORMATS
from scalewright.data.writing import convert

SMALL = ImageSet(num_images=12, num_classes=3, seed=5)


def small_sets(folder: Path) -> dict[str, Path]:
    """The same images as class folders, as shards and as LMDB."""
    made = make_images(folder / "folder", SMALL)
    return {to: made if to == "folder" else convert(made, folder / to, to=to) for to in FORMATS}
