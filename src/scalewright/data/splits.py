"""Training and validation images of a data set: two folders, or one folder of which some images are held out."""

from __future__ import annotations

from pathlib import Path

TRAINING, VALIDATION = ("train", "training"), ("val", "validation", "valid")
HELD_OUT_EVERY = 26
"""One of this many images is held out: ImageNet has 50,000 beside 1,281,167 (Russakovsky et al. 2015)."""


def split_folders(path: Path) -> tuple[Path, Path]:
    """The folders of training and validation; the same one twice if the data set has no such folders."""
    training = next((path / name for name in TRAINING if (path / name).is_dir()), None)
    validation = next((path / name for name in VALIDATION if (path / name).is_dir()), None)
    return (path, path) if training is None or validation is None else (training, validation)
