"""Numbers of the cost models that belong to no single device: the entry `constants/engine.toml`, group by group."""

from __future__ import annotations

from scalewright.catalog.constant_types.calibration import CalibrationConstants
from scalewright.catalog.constant_types.campaign import CampaignConstants
from scalewright.catalog.constant_types.rl import RlConstants
from scalewright.catalog.constant_types.serving import ServingConstants
from scalewright.catalog.constant_types.training import TrainingConstants
from scalewright.catalog.constant_types.vision import VisionConstants
from scalewright.catalog.constant_types.whole_run import WholeRunConstants
from scalewright.catalog.entry import Entry


class Constants(
    Entry,
    TrainingConstants,
    ServingConstants,
    RlConstants,
    WholeRunConstants,
    CampaignConstants,
    VisionConstants,
    CalibrationConstants,
):
    """Numbers the cost models need that belong to no single device: measured, fitted or assumed, never literals."""
