"""Constants of the vision models; part of `Constants`."""

from __future__ import annotations

from scalewright.catalog.facts import Bytes, Count, Fraction, Id, Seconds, Strict


class VisionConstants(Strict):
    """What convolutional networks need that belongs to no single device."""

    vector_convolution_gain: Fraction
    """Rate of 32-bit convolutions on the vector units, channels first, over plain products: fewer multiplications
    (Winograd) and a better share of peak than the one assumed for products."""
    matrix_convolution_share: Fraction
    """Rate of convolutions on the matrix units over the roofline of their product."""
    norm_bandwidth_share: Fraction
    """Bandwidth that norms, activations and layout changes reach, over that of streaming kernels."""
    channels_first_rate: Count
    """Elements that a compute unit's kernels move per cycle where channels come first: a limit beside memory."""
    convolution_host_time: Seconds
    """Host work to issue a convolution with its norm and activation, one pass."""
    gradient_bucket: Bytes
    """Gradients that data parallelism sums at once; the last of them have no backward pass left to hide behind."""
    vision_interval_low: Fraction
    """Lower end of the 90 % interval of a vision step, as measured over predicted."""
    vision_interval_high: Fraction
    """Upper end."""
    vision_seen_accelerators: tuple[Id, ...]
    """Devices of the runs that the constants above are fitted to; elsewhere the interval is wider."""
    vision_seen_precisions: tuple[str, ...]
    own_norm_factor: Count
    """Time of PyTorch's own bf16 norms with channels last over that of their memory traffic, activations included."""
