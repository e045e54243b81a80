"""Generated JPEG images: as large as ImageNet's, with classes that can be learnt, the same for the same seed.

A class is two colours and a grating of some direction and pitch; every image has its own phase, light and grain. Grain
with the spectrum of photographs (power falling with the square of the frequency) makes files as large as photographs.
Classes do not depend on the seed: sets of two seeds are training and validation data of the same classes.
"""

from __future__ import annotations

import colorsys
import io
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.data.samples import Format, Progress, Sample, no_progress
from scalewright.data.sizing import plan_shards
from scalewright.data.writing import write_samples
from scalewright.errors import ConfigError, MissingExtraError

VERSION = 1
"""Version of the recipe: another version makes another data set."""
MEAN_BYTES = 110_000
"""Mean size of an image: 138 GB of ImageNet-1k's training set over 1.28 million images."""
NUM_MEAN_PIXELS = 143_000
"""With the spread and the shapes below, sides of 400 and 350 on average, as ImageNet's (Russakovsky et al. 2015)."""
AREA_SPREAD = 0.35
"""Standard deviation of an area's logarithm."""
SHAPES = ((4, 3), (4, 3), (4, 3), (3, 2), (1, 1), (1, 1), (3, 4))
MIN_SIDE, MAX_SIDE = 96, 1000
QUALITY = 95
TEXTURE_SIDE = 1100
NUM_TEXTURES = 3
GRAIN, FINE_GRAIN = 22.0, 25.0
"""Standard deviations in steps of 256, of the grain of photographs and of a sensor's noise."""
GRAIN_SPREAD = 0.45
CLASS_SEED = 20150911


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSet:
    """Everything that determines the bytes of a set."""

    num_images: int
    num_classes: int
    seed: int = 0
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.num_images < 1:
            raise ConfigError(f"{self.num_images} images: a set has 1 or more")
        if not 1 <= self.num_classes <= self.num_images:
            raise ConfigError(f"{self.num_classes} classes of {self.num_images} images: give 1 up to one per image")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed {self.seed} must be from 0 up to 2^63")


def make_images(
    path: Path,
    images: ImageSet,
    *,
    to: Format = "folder",
    num_consumers: int = 1,
    num_workers: int = 1,
    on_progress: Progress = no_progress,
) -> Path:
    """Make the set at `path`, unless it exists; another data set at this path is refused."""
    expected_bytes = images.num_images * MEAN_BYTES
    plan = plan_shards(data_bytes=expected_bytes, num_samples=images.num_images, num_consumers=num_consumers)
    return write_samples(
        GeneratedImages(images),
        path,
        to=to,
        order=list(range(images.num_images)),
        classes=tuple(f"class-{number:04d}" for number in range(images.num_classes)),
        origin={"generated": asdict(images)},
        shard_bytes=plan.shard_bytes,
        expected_bytes=expected_bytes,
        num_workers=num_workers,
        on_progress=on_progress,
    )


class GeneratedImages:
    """The images of a set. Each is made when it is read."""

    def __init__(self, images: ImageSet) -> None:
        self._images = images
        self._textures: list[NDArray[np.float32]] = []
        try:
            import PIL.Image  # noqa: F401
        except ModuleNotFoundError as error:
            raise MissingExtraError("data", "pillow") from error

    def __len__(self) -> int:
        return self._images.num_images

    def read(self, index: int) -> Sample:
        """Label: the number modulo the classes, so that neighbours differ and classes are even."""
        label = index % self._images.num_classes
        generator = np.random.default_rng([self._images.seed, index])
        return _jpeg(self._pixels(generator, label)), label

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_textures": []}

    def _pixels(self, generator: np.random.Generator, label: int) -> NDArray[np.uint8]:
        width, height = _size(generator)
        first, second, angle, pitch = class_look(label)
        wave = _grating(generator, width, height, angle, pitch)
        light = generator.normal(1.0, 0.12)
        strength = math.exp(generator.normal(-(GRAIN_SPREAD**2) / 2, GRAIN_SPREAD))
        grain = self._grain(generator, width, height) * np.float32(GRAIN * strength)
        fine = generator.standard_normal((height, width), dtype=np.float32) * np.float32(FINE_GRAIN * strength)
        grain += fine
        pixels = np.empty((height, width, 3), dtype=np.uint8)
        for channel in range(3):
            plain = (first[channel] + (second[channel] - first[channel]) * wave) * np.float32(255 * light)
            np.clip(plain + grain, 0, 255, out=plain)
            pixels[:, :, channel] = plain
        return pixels

    def _grain(self, generator: np.random.Generator, width: int, height: int) -> NDArray[np.float32]:
        if not self._textures:
            self._textures = [_texture(self._images.seed, number) for number in range(NUM_TEXTURES)]
        texture = self._textures[generator.integers(NUM_TEXTURES)]
        top, left = generator.integers(TEXTURE_SIDE - height + 1), generator.integers(TEXTURE_SIDE - width + 1)
        turned = texture[top : top + height, left : left + width]
        return turned[:: generator.choice((-1, 1)), :: generator.choice((-1, 1))]


Colour = NDArray[np.float32]


def class_look(label: int) -> tuple[Colour, Colour, float, float]:
    """Two colours, direction in radians and pitch in pixels that a class is known by, the same in every set."""
    generator = np.random.default_rng([CLASS_SEED, label])
    hue = (label * 0.6180339887) % 1.0  # golden-ratio steps keep the hues of few classes far apart
    first = colorsys.hsv_to_rgb(hue, generator.uniform(0.5, 0.95), generator.uniform(0.6, 0.95))
    second = colorsys.hsv_to_rgb(generator.random(), generator.uniform(0.1, 0.9), generator.uniform(0.1, 0.6))
    angle, pitch = generator.uniform(0, math.pi), math.exp(generator.uniform(math.log(24), math.log(120)))
    return np.asarray(first, np.float32), np.asarray(second, np.float32), angle, pitch


def _size(generator: np.random.Generator) -> tuple[int, int]:
    """Width and height: a log-normal area about the mean one, in a shape of photographs."""
    area = NUM_MEAN_PIXELS * math.exp(generator.normal(-(AREA_SPREAD**2) / 2, AREA_SPREAD))
    across, down = SHAPES[generator.integers(len(SHAPES))]
    width = math.sqrt(area * across / down)
    sides = (round(min(max(side, MIN_SIDE), MAX_SIDE)) for side in (width, area / width))
    return next(sides), next(sides)


def _grating(
    generator: np.random.Generator, width: int, height: int, angle: float, pitch: float
) -> NDArray[np.float32]:
    """A wave from 0 to 1 across the image: sin(x + y) as products of rows and columns, which is 10 times faster."""
    angle += generator.normal(0, 0.08)
    turns = 2 * math.pi / (pitch * math.exp(generator.normal(0, 0.1)))
    across = np.arange(width) * (turns * math.cos(angle)) + generator.uniform(0, 2 * math.pi)
    down = np.arange(height) * (turns * math.sin(angle))
    wave = np.outer(np.cos(down), np.sin(across)) + np.outer(np.sin(down), np.cos(across))
    half: NDArray[np.float32] = (0.5 + 0.5 * wave).astype(np.float32)
    return half


def _texture(seed: int, number: int) -> NDArray[np.float32]:
    """Noise of unit variance whose amplitude falls with the frequency, as that of photographs (Field 1987)."""
    generator = np.random.default_rng([seed, 2**32 + number])
    spectrum = np.fft.rfft2(generator.standard_normal((TEXTURE_SIDE, TEXTURE_SIDE)))
    frequency = np.hypot(np.fft.fftfreq(TEXTURE_SIDE)[:, None], np.fft.rfftfreq(TEXTURE_SIDE)[None, :])
    frequency[0, 0] = 1.0
    spectrum /= frequency
    spectrum[0, 0] = 0.0
    noise = np.fft.irfft2(spectrum, s=(TEXTURE_SIDE, TEXTURE_SIDE))
    scaled: NDArray[np.float32] = (noise / noise.std()).astype(np.float32)
    return scaled


def _jpeg(pixels: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="JPEG", quality=QUALITY)
    return buffer.getvalue()
