"""Constants of the vision models; part of `Constants`."""

from __future__ import annotations

from scalewright.catalog.facts import Bytes, Count, Fraction, Id, Seconds, Strict


class VisionConstants(Strict):
    """What convolutional networks need that belongs to no single device."""

    vector_convolution_gain: Fraction
    """Rate of 32-bit convolutions on the vector units, channels first, over plain products: fewer multiplications
    (Winograd) and a better share of peak than the one assumed for products."""
    channels_last_vector_gain: Fraction
    """The same with channels last, where 1x1 convolutions are products."""
    wide_unit_convolution_share: Fraction
    """Rate of 32-bit convolutions, channels first, on compute units of 128 lanes over that on units of 64, as shares of
    products: the kernels are those for 64."""
    wide_unit_pointwise_share: Fraction
    """The same of 1x1 convolutions."""
    matrix_convolution_share: Fraction
    """Rate of convolutions on the matrix units over the roofline of their product."""
    norm_bandwidth_share: Fraction
    """Bandwidth that norms, activations and layout changes reach, over that of streaming kernels."""
    channels_first_rate: Count
    """Elements that a compute unit's kernels move per cycle where channels come first: a limit beside memory."""
    compiled_norm_factor: Count
    """Time of 16-bit norms that a compiler writes over that of the library's fused ones."""
    pool_rate: Count
    """Elements that PyTorch's max pooling with channels last takes in per cycle and compute unit, both passes."""
    convolution_gap: Seconds
    """Starts and ends of the kernels of a convolution with its norm, both passes: the part of a step that a smaller
    batch does not shrink."""
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
    vision_seen_vendors: tuple[str, ...]
    """Whose convolution libraries those runs used: another vendor's may be far from the constants."""
    vision_seen_precisions: tuple[str, ...]
    own_norm_factor: Count
    """Time of PyTorch's own bf16 norms with channels last over that of their memory traffic, activations included."""
