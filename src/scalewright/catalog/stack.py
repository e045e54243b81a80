"""Stack: a software stack as the catalogue describes it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from scalewright.catalog.entry import Entry
from scalewright.catalog.facts import Bytes, Count, Fraction, Seconds, Strict

LaunchMode = Literal["eager", "compiled", "graph"]
"""A mode of `bench dispatch`: how kernels are issued."""
CompileOption = Literal["off", "default", "max-autotune", "graphs"]
"""The `compile` option of scalewright's own runs."""


class KernelCounts(Strict):
    """Launches, kernels and crossings of memory in scalewright's own runs with this stack.

    A calibration multiplies them by the times that it measured. They take the place of the fitted factors then.
    """

    launch_mode: LaunchMode
    """How its kernels are issued."""
    layer_launches_cpu: Count | None = None
    """Launches whose host time a layer's forward pass takes on a CPU; absent: the fitted host time is used."""
    layer_launches_gpu: Count
    """The same on the host of a GPU."""
    layer_kernels: Count | None = None
    """Kernels of a layer, forward and backward: the device pauses between two of them. Absent in a graph, where the
    pauses are the launches."""
    step_launches: Count
    """Launches once per step: norms of the gradients, scalars, the batch, reading the loss."""
    elementwise_passes_16bit: Count
    """Crossings of a layer's activations outside the products, forward, in 16 bit."""
    elementwise_passes_32bit: Count
    loss_passes_16bit: Count | None = None
    """Crossings of the scores for the loss, forward and backward, in 16 bit; absent: the fitted crossings are used."""
    loss_passes_32bit: Count | None = None


class EngineFactors(Strict):
    """What a training program takes more than the stack that describes it, as fitted to runs of it on a GPU."""

    fitted_on: str = Field(min_length=1)
    """Release of the program, and the machine."""
    host: Count
    elementwise: Count
    update: Count | None = None


class Stack(Entry):
    """A software stack: how its kernels, host code and overlaps differ. Three fitted factors at most."""

    fitted_on: str = ""
    """Releases of the software whose runs the factors were fitted to, or `not fitted` and where they are from; empty:
    the entry does not say."""
    host_time: Seconds
    """Host work to issue one layer's forward pass; what a device faster than its host waits for."""
    elementwise_passes: Count
    """Times a layer's activations cross memory outside the products, forward."""
    attention_share: Fraction
    """Rate of fused attention over the device's best 16-bit product, for heads of 128 and long sequences; ignored
    when attention is not fused."""
    graphed: bool = False
    """The whole step on one device is replayed as one graph: the host issues nothing."""
    own_runs: tuple[CompileOption, ...] = ()
    """The `compile` options of scalewright's own runs that this stack describes; empty: it runs elsewhere."""
    counts: KernelCounts | None = None
    """Absent: a calibration has nothing to multiply, so the fitted factors are used on every machine."""
    compiled: bool
    """Element-wise operations are fused by a compiler, and convolutions run channels last."""
    fused_attention: bool
    """False: scores are written to memory, as before FlashAttention."""
    has_ampere_attention: bool = False
    """Fused attention uses the instructions of Ampere only (FlashAttention-2): it loses rate on later devices."""
    overlaps_tensor: bool
    """Tensor-parallel transfers run beside the products they feed."""
    overlaps_gradients: bool
    """Gradient and weight exchange runs beside the backward pass."""
    sends_tokens_once: bool = False
    """A token goes once to each node that holds experts of its choice, and is spread there; false: once an expert."""
    cast_passes: Count
    """Crossings of a 16-bit tensor that its cast to 8 bit takes, in both layouts that its products need."""
    block_cast_passes: Count
    """The same where every block of the tensor has a scale of its own."""
    casts_weights: bool
    """With 8-bit products, weights are cast in every micro-batch; false: once a step."""
    dropout: bool
    """Dropout masks are kept for the backward pass."""
    keeps_gradients: bool
    """Gradients have a buffer of their own; false: they appear as the backward pass frees activations."""
    narrow_frozen_weights: bool = False
    """With 8-bit products, LoRA keeps the frozen weights in 8 bit."""
    fused_dispatch: bool = False
    """Tokens go to experts and back through fused kernels that weigh inside the experts (DeepEP with Megatron-Core's
    permutation fusion): outputs of experts are not kept for the backward pass."""
    narrow_gates: bool = False
    """With 8-bit products, the inputs of the activation function are kept in 8 bit (Megatron-Core's
    `activation_func_fp8_input_store`)."""
    gradient_bytes: Bytes | None = None
    """Length of a gradient in that buffer, where the stack keeps it shorter than the precision says."""
    logits_bytes: Bytes
    """Memory per output score: the layer's output, copies in fp32 and their gradients, unless the loss is fused."""
    update_copy: Bytes | None = None
    """32-bit copy of its gradients that the update makes of each parameter, split like the optimizer's state."""
    exchange_buffer: Bytes | None = None
    """Flat buffers through which gradients and weights are exchanged, with ZeRO."""
    has_short_gradients: bool = False
    """Gradients are born in 16 bit and summed in 32 bit, and both are kept."""
    has_short_weights: bool = True
    """16-bit weights are kept beside the 32-bit ones; false: with ZeRO-3 they exist only while they are gathered."""
    loss_memory: Bytes | None = None
    """Memory per output score where it differs from `logits_bytes`, by which the loss is timed."""
    gathers_per_layer: int = Field(gt=0)
    """Collectives per layer when weights are sharded: 1 for whole layers, more when each tensor goes alone."""
    engine_factors: dict[str, EngineFactors] = Field(default_factory=dict)
    """By the name of a training program that runs this stack with more work: factors on GPUs that were not calibrated
    with `calibrate --engine`."""
    frameworks: tuple[Literal["megatron", "torchtitan", "deepspeed", "fsdp"], ...] = ()
    """Training frameworks, by the names of `plan --emit`, that this stack describes."""
    splits: tuple[Literal["tp", "pp", "cp", "ep"], ...]
    """Axes beside data parallelism along which it splits a model."""
    max_zero: int = Field(ge=0, le=3)
    """The highest ZeRO stage it has."""
