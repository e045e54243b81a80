"""Constants of a transformer's training step; part of `Constants`."""

from __future__ import annotations

from typing import Literal

from scalewright.catalog.facts import Bytes, Count, FlopPerS, Fraction, Id, Seconds, Strict

ShapeName = Literal["hidden", "seq", "vocab", "head_dim"]


class TrainingConstants(Strict):
    """Rates, crossings of memory, host work, overlap and the interval of a training step."""

    memory_bandwidth_share: Fraction
    """Share of the datasheet's memory bandwidth that streaming kernels reach."""
    unpublished_matmul_share: Fraction
    """Share of peak taken for a device without a published best matrix product."""
    throttle_exponent: Count
    """How fast sustained products in 16 bit slow down as peak per watt grows."""
    narrow_throttle_exponent: Count
    """The same for products in 8 bit and fewer."""
    throttle_reference: FlopPerS
    """16-bit peak per watt of the device whose sustained rate was measured."""
    throttle_share: Fraction
    """Sustained over best rate of that device."""
    vector_matmul_share: Fraction
    """Rate of products on the vector units of such devices over the best one published."""
    misaligned_matmul_share: Fraction
    """Rate of 16-bit products with a side that is no multiple of 8 elements, over that of aligned ones."""
    odd_matmul_share: Fraction
    """The same with a side that is an odd number, on devices from Hopper on: their products load by 16 bytes only, and
    what takes their place loads element by element."""
    padded_matmul_share: Fraction
    """The same for either where a compiler copies the operands into aligned ones."""
    depth_overhead: Count
    """Elements of depth that filling and draining a tile's pipeline costs."""
    tile_share: dict[str, Fraction]
    """Rate of smaller tiles over the largest, by `rows x columns`."""
    expert_imbalance: Fraction
    """Tokens of the busiest device's experts over the mean, less one, beyond what chance brings."""
    attention_seq_ramp: Count
    """Sequence length at which fused attention reaches half of its rate."""
    attention_fill: Count
    """Loss of fused attention on a device that has as many tiles of queries as units: the last wave is half empty."""
    attention_head_ramp: Count
    """Head size at which fused attention would reach half of its rate for endless heads."""
    ampere_attention_share: Fraction
    """Rate of fused attention that uses the instructions of Ampere only, on later devices of the same maker, over that
    of attention written for them, each as a share of the best product."""
    unfused_product_share: Fraction
    """Rate of the batched products of unfused attention over other products."""
    unfused_attention_passes: Count
    """Times the score matrix crosses memory in one layer, forward and backward, when attention is not fused."""
    permute_passes: Count
    """Times routed tokens cross memory in one layer, forward, to reach their experts and come back."""
    logits_passes: Count
    """Times the output scores cross memory in a loss of several kernels, forward and backward."""
    fused_logits_share: Fraction
    """Part of those crossings left where a compiler or a kernel of its own fuses the loss."""
    gated_traffic: Count
    """Element-wise traffic of a gated feed-forward over that of a plain one of the same width."""
    gradient_sum_passes: Count
    """Times the gradients cross memory to be added to those of the micro-batches before, where no product does it."""
    kernel_gap: Seconds
    """What a kernel takes to start and to drain on a device whose queue is full."""
    layer_kernels: Count
    """Kernels of a layer, forward and backward."""
    ring_kernels: Count
    """Kernels that each further part of a context-parallel ring adds to them."""
    expert_host_factor: Count
    """Host work of a mixture-of-experts layer over a dense one: routing, permutation and its synchronisation."""
    expert_cast_host: Fraction
    """Host work of each expert a device holds, over a dense layer's, where every expert's tokens are cast alone."""
    softmax_fallback_host: Fraction
    """Host work that a softmax in several kernels adds to a layer's, where the fused kernel cannot run."""
    host_spread: Fraction
    """Growth of host time for each doubling of the hosts that a tensor-parallel group waits for."""
    host_blend: Count
    """Exponent p of (device^p + host^p)^(1/p) on a calibrated machine: how sharply the slower of both takes over."""
    scale_up_share: Fraction
    """Share of the scale-up link rate that large collectives reach."""
    collective_offset: Seconds
    """Time to start one collective."""
    latency_factor: Count
    """Latency per step in a running job over that of a quiet link."""
    tensor_exposure: Fraction
    """Part of tensor-parallel time left visible by a stack that overlaps it."""
    transfer_exposure: Fraction
    """Part of pipeline transfers left visible."""
    all_to_all_exposure: Fraction
    """Part of expert-parallel transfers left visible."""
    gradient_overlap: Fraction
    """Part of the compute beside it that hides the exchange of gradients and of sharded weights."""
    overlap_cost: Fraction
    """Slowdown of compute for each second of exchange it hides: both want memory, units and power."""
    straggler_growth: Fraction
    """Slowdown for each doubling of the node count: all wait for the slowest."""
    congestion_share: Fraction
    """Share of a shared machine from which on a job sees all of its fabric's `congestion`."""
    step_overhead: Seconds
    """Host work once per step: data, clipping, logging."""
    allocator_overhead: Fraction
    """Reserved over allocated memory, less one: fragments that no tensor fits into, and rounding."""
    lone_allocator_overhead: Fraction
    """The same in a job of one device."""
    full_allocator_overhead: Fraction
    """The same on a device that is full: blocks that nothing uses were given back."""
    convolution_allocator_overhead: Fraction
    """The same for convolutional networks, whose tensors have many sizes."""
    transformed_tile: Bytes
    """A tile of an image after the transform of cuDNN's FFT convolution."""
    device_context: Bytes
    """Driver context, kernels and library handles of one process, outside the framework's allocator."""
    communicator_memory: Bytes
    """Buffers of one communicator of the collective library, outside the framework's allocator."""
    memory_error: Fraction
    """Measured over predicted memory of a device, less one, below which 90 % of left-out published runs stay."""
    interval_low: Fraction
    """Lower end of the 90 % interval, as measured over predicted."""
    interval_high: Fraction
    """Upper end of the 90 % interval, as measured over predicted."""
    expert_interval_power: Count
    """Exponent on both ends for mixtures of experts, whose times scatter more from release to release."""
    layout_resolution: Fraction
    """Spread of measured over predicted time between layouts of one job: what the model cannot tell apart."""
    unseen_widening: Fraction
    """Growth of an interval's logarithm for each thing about a request that no run behind the interval shares."""
    noticeable_slowdown: Count
    """Other jobs widen the interval where they may slow down exchange by more than this."""
    seen_with_stack: dict[Id, tuple[Literal["8 bit", "experts"], ...]]
    """What fitted runs of each software stack had, of what changes its kernels."""
    seen_accelerators: tuple[Id, ...]
    """Devices of the published runs behind the interval; a prediction elsewhere has a wider one."""
    seen_precisions: tuple[str, ...]
    seen_transports: tuple[str, ...]
    seen_gpus: Count
    """Most devices of such a run."""
    seen_experts: Count
    """Most experts of such a run."""
    seen_shapes: dict[ShapeName, tuple[int, int]]
    """Smallest and largest shape of such a run."""
    unfused_forward_share: Fraction
    """Part of the crossings of the score matrix that the forward pass has, when attention is not fused."""
    attention_head_step: Count
    """Fused attention runs a head as the next multiple of this size."""
    matrix_unit_alignment: Count
    """Elements: 16-bit products with a side that is no multiple of this leave the matrix units."""
    vocab_step: Count
    """Rows of the output layer that each tensor-parallel rank holds a multiple of."""
    softmax_batch: Count
    """Score matrices that a rank must have a multiple of for the fused softmax kernel of unfused attention."""
    fused_loss_width: Bytes
    """A stack whose loss keeps no more than this per score computes the loss in one kernel."""
    grouped_tile_rows: Count
    """Rows that the tokens of each expert are padded to in a grouped product."""
    host_backward_ratio: Count
    """Host work to issue a backward pass over that of the forward pass."""
    moving_power_share: Fraction
    """Board power of kernels that move memory, over the board's limit."""
