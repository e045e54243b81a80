"""Constants of a campaign: what a whole run costs beside its steps, from published runs; part of `Constants`."""

from __future__ import annotations

from scalewright.catalog.facts import Fraction, Seconds, Strict


class CampaignConstants(Strict):
    """Named shares are over the time of the planned steps; what no name explains is one factor with an interval."""

    layout_gap_share: Fraction
    """Predicted step of the layouts that teams published over the best layout that a search finds, less 1."""
    slow_step_share: Fraction
    """Steps slower than in a short test: lower clocks by temperature, stragglers that come and go."""
    evaluation_share: Fraction
    """Validation between steps."""
    ramp_up_share: Fraction
    """Time lost while the batch still grows, because small batches use the devices worse."""
    rollback_share: Fraction
    """Work done again from an older checkpoint after the loss diverged."""
    campaign_factor: Fraction
    """Published hours over those that steps, failures and named shares give."""
    campaign_factor_low: Fraction
    """Lower end of the 90 % interval of `campaign_factor` for a run that is not in the fit."""
    campaign_factor_high: Fraction
    campaign_device_time: Seconds
    """Device time of planned steps in which a run meets 63 % of what campaigns met; the rest follows as 1 - e^-x."""
