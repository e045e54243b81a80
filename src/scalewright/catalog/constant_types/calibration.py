"""Constants that a calibration multiplies its measured times by; part of `Constants`."""

from __future__ import annotations

from scalewright.catalog.facts import Count, Fraction, Strict


class CalibrationConstants(Strict):
    """Counts of launches, kernels and crossings in scalewright's own runs that belong to no single stack."""

    tensor_launches_cpu: Count
    """Launches to update one tensor on a CPU."""
    tensor_launches_gpu: Count
    """Launches to update one tensor on a GPU."""
    convolution_launches: Count
    """Launches of a convolution with its norm and activation, forward."""
    convolution_kernels_eager: Count
    """Kernels of an eager step for each convolution; between two of them the device pauses."""
    convolution_kernels_compiled: Count
    """The same for a compiled step."""
    autocast_host: Fraction
    """More host work of a vision step under autocast: weights are cast, and gradients back."""
    update_passes_cpu: Count
    """Crossings of the optimizer's tensors on a CPU over those of one fused pass."""
    copy_passes_cpu: Count
    """Times that gradients cross a CPU's memory to be gathered for their exchange and put back."""
    calibrated_width_range: Count
    """Widths up to so many times below or above those of a calibration's steps count as seen."""
