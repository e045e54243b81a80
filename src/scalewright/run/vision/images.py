"""From an encoded image to the square of pixels that a network sees, with Pillow.

JPEG can be decoded at a half, a quarter or an eighth of its size for a fraction of the work ("draft" in Pillow). That
is done as long as the part that is kept stays at least as large as the square.
"""

from __future__ import annotations

import io
import math
import struct

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from scalewright.data.samples import Samples, damaged, image_problem

Box = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels of the whole image."""
AREA_FRAC = (0.08, 1.0)
SIDES_RATIO = (3.0 / 4.0, 4.0 / 3.0)
NUM_TRIES = 10
"""The random part of an image: its share of the area and its shape (szegedy2014, section 6)."""
CENTRE_FRAC = 224.0 / 256.0
"""Of the shorter side: what validation looks at (goyal2017, section 5.1)."""
BROKEN = (OSError, ValueError, SyntaxError, struct.error, Image.DecompressionBombError, UnidentifiedImageError)
"""What Pillow raises for files that are cut off, damaged or not images."""


def training_pixels(
    samples: Samples, index: int, *, size: int, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], int]:
    """A random part of an image, perhaps mirrored, and its class."""
    content, label = samples.read(index)
    try:
        with Image.open(io.BytesIO(content)) as image:
            box = random_box(image.width, image.height, rng)
            pixels = _square(image, box, size)
    except BROKEN as error:
        raise damaged(samples, index, _problem(content, error)) from error
    return (pixels[:, ::-1] if rng.random() < 0.5 else pixels), label


def validation_pixels(samples: Samples, index: int, *, size: int) -> tuple[NDArray[np.uint8], int]:
    """The middle of an image, and its class."""
    content, label = samples.read(index)
    try:
        with Image.open(io.BytesIO(content)) as image:
            pixels = _square(image, centre_box(image.width, image.height), size)
    except BROKEN as error:
        raise damaged(samples, index, _problem(content, error)) from error
    return pixels, label


def random_box(width: int, height: int, rng: np.random.Generator) -> Box:
    """A part of 8 to 100 % of the area with sides of 3:4 to 4:3; after ten that do not fit, the largest that does."""
    low, high = (math.log(ratio) for ratio in SIDES_RATIO)
    for _ in range(NUM_TRIES):
        area, ratio = width * height * rng.uniform(*AREA_FRAC), math.exp(rng.uniform(low, high))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left, top = int(rng.integers(width - across + 1)), int(rng.integers(height - down + 1))
            return (left, top, left + across, top + down)
    across, down = min(width, round(height * SIDES_RATIO[1])), min(height, round(width / SIDES_RATIO[0]))
    left, top = (width - across) // 2, (height - down) // 2
    return (left, top, left + across, top + down)


def centre_box(width: int, height: int) -> Box:
    side = CENTRE_FRAC * min(width, height)
    left, top = (width - side) / 2.0, (height - side) / 2.0
    return (left, top, left + side, top + side)


def _square(image: Image.Image, box: Box, size: int) -> NDArray[np.uint8]:
    """The part of the image as `size` x `size` pixels, three bytes each."""
    whole = image.size
    across, down = box[2] - box[0], box[3] - box[1]
    image.draft("RGB", (math.ceil(whole[0] * size / across), math.ceil(whole[1] * size / down)))
    shrunk_x, shrunk_y = image.width / whole[0], image.height / whole[1]
    part = (box[0] * shrunk_x, box[1] * shrunk_y, box[2] * shrunk_x, box[3] * shrunk_y)
    plain = image if image.mode == "RGB" else image.convert("RGB")
    return np.asarray(plain.resize((size, size), Image.Resampling.BILINEAR, box=part))


def _problem(content: bytes, error: Exception) -> str:
    return image_problem(content) or f"cannot be decoded ({' '.join(str(error).split())[:120] or type(error).__name__})"
