"""Colours of figures: any two of a panel differ for readers with any colour vision, and none has two meanings."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pytest

from scalewright.report.figure_file import COLOURS, LINE_COLOURS, MEMORY_COLOURS
from scalewright.report.hybrid.figures import KIND_COLOURS
from scalewright.report.page_template import page_text
from scalewright.report.planner.plan_plot import NUM_TERMS

# Machado, Oliveira and Fernandes 2009, severity 1: what a reader sees, in linear RGB.
VISION = {
    "full": (1, 0, 0, 0, 1, 0, 0, 0, 1),
    "protanopia": (0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998),
    "deuteranopia": (0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.011820, 0.042940, 0.968881),
    "tritanopia": (1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.303900),
}
PALETTES = {
    "time": COLOURS[:NUM_TERMS],
    "lines": LINE_COLOURS,
    "memory": MEMORY_COLOURS,
    "lanes": tuple(KIND_COLOURS.values()),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.95047, 1.0, 1.08883])
LEAST_DISTANCE = 8.0
"""In CIELAB; 2.3 is what an eye can just tell apart side by side."""


def seen(colour: str, vision: str) -> np.ndarray:
    """A colour in CIELAB, as a reader sees it."""
    encoded = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    x, y, z = TO_XYZ @ np.clip(np.reshape(VISION[vision], (3, 3)) @ linear, 0.0, 1.0) / WHITE
    f = [v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("name", PALETTES)
def test_colours_of_one_panel_differ(name: str, vision: str) -> None:
    palette = PALETTES[name]
    distances = {(a, b): float(np.linalg.norm(seen(a, vision) - seen(b, vision))) for a, b in combinations(palette, 2)}
    assert min(distances.values()) > LEAST_DISTANCE, min(distances, key=lambda pair: distances[pair])


def test_the_page_of_a_study_has_the_colours_of_its_plots() -> None:
    (line,) = re.findall(r"^const COLOURS = \[(.*)\];$", page_text("study.js"), re.MULTILINE)
    colours = [colour.replace("var(--ink)", "#000000").upper() for colour in re.findall(r'"([^"]+)"', line)]
    assert tuple(colours) == LINE_COLOURS


def test_time_and_memory_share_no_colour() -> None:
    assert not set(COLOURS) & set(MEMORY_COLOURS)
    assert len(MEMORY_COLOURS) >= NUM_TERMS
