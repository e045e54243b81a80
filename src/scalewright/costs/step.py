"""One training step of a dense transformer: time and memory, assembled from the parts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalewright.catalog.types import TransformerShape
from scalewright.costs import collectives, compute, interval, memory, pipeline
from scalewright.costs.breakdown import Breakdown, FloatLike
from scalewright.costs.machine import Machine
from scalewright.errors import NotExpressedError
from scalewright.workload.flop import training_flop_per_sample, transformer_forward_flop
from scalewright.workload.layout import Layout
from scalewright.workload.model import ModelSpec, attention_params, expert_params
from scalewright.workload.precision import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """What one step costs. Every number may be a column over layouts."""

    time: Breakdown
    memory: Breakdown
    """Peak allocated on the worst rank."""
    interval_s: tuple[FloatLike, FloatLike]
    reserved_bytes: FloatLike
    fits: FloatLike
    """1 where the reserved memory is within the device's."""
    model_flop: FloatLike
    hardware_flop: FloatLike
    """Model work plus what is computed again."""
    mfu_frac: FloatLike
    hfu_frac: FloatLike

    def at(self, index: int) -> StepCost:
        def pick(value: FloatLike) -> FloatLike:
            return float(value[index]) if isinstance(value, np.ndarray) else value

        return StepCost(
            time=self.time.at(index),
            memory=self.memory.at(index),
            interval_s=(pick(self.interval_s[0]), pick(self.interval_s[1])),
            reserved_bytes=pick(self.reserved_bytes),
            fits=pick(self.fits),
            model_flop=pick(self.model_flop),
            hardware_flop=pick(self.hardware_flop),
            mfu_frac=pick(self.mfu_frac),
            hfu_frac=pick(self.hfu_frac),
        )


def why_not_expressed(spec: ModelSpec, layout: Layout) -> str | None:
    """The first thing about a request that these cost models do not cover, or None."""
    shape = spec.shape
    if not isinstance(shape, TransformerShape):
        return "vision models are not covered yet"
    if shape.moe is not None:
        return "mixture-of-experts models are not covered yet"
    if shape.mla is not None:
        return "multi-head latent attention is not covered yet"
    if shape.encoder_layers:
        return "encoder-decoder models are not covered yet"
    if np.any(np.asarray(layout.cp) > 1):
        return "context parallelism is not covered yet"
    if np.any(np.asarray(layout.ep) > 1):
        return "expert parallelism is not covered yet"
    return None


def step_cost(*, spec: ModelSpec, machine: Machine, layout: Layout, recipe: Recipe) -> StepCost:
    """Cost of one step for one layout or for columns of them: the only code path, whoever asks."""
    reason = why_not_expressed(spec, layout)
    if reason is not None:
        raise NotExpressedError(f"{spec.id}: {reason}")
    shape = spec.transformer
    time = step_time(shape=shape, machine=machine, layout=layout, recipe=recipe)
    used = step_memory(shape=shape, layout=layout, recipe=recipe)
    constants = machine.constants
    reserved = used.total * (1.0 + constants.allocator_overhead.value) + constants.device_reserve.value
    model_flop = training_flop_per_sample(spec) * layout.gbs
    hardware_flop = model_flop + recompute_flop_per_sample(shape, layout) * layout.gbs
    rate = time.total * layout.num_gpus * machine.peak_flop_per_s(recipe.matmul)
    fits = np.asarray(reserved <= machine.memory_bytes, dtype=np.float64)
    return StepCost(
        time=time,
        memory=used,
        interval_s=interval.interval_s(time_s=time.total, constants=constants),
        reserved_bytes=reserved,
        fits=fits if fits.ndim else float(fits),
        model_flop=model_flop,
        hardware_flop=hardware_flop,
        mfu_frac=model_flop / rate,
        hfu_frac=hardware_flop / rate,
    )


def recompute_flop_per_sample(shape: TransformerShape, layout: Layout) -> float:
    """Work done again in the backward pass: the layers' forward (full), or its attention scores (selective)."""
    parts = transformer_forward_flop(shape)
    if layout.recompute == "full":
        return sum(v for name, v in parts.items() if name != "head")
    return parts["attention_scores"] if layout.recompute == "selective" else 0.0


def step_time(*, shape: TransformerShape, machine: Machine, layout: Layout, recipe: Recipe) -> Breakdown:
    """Seconds of one step: the fullest stage's work for every micro-batch, what it waits for, and the update.

    Equation  t = m (t_layers + t_head + t_tp + t_pp) + bubble + exposed t_dp + t_optimizer
    Source    narayanan2021 (arXiv:2104.04473), section 3
    Assumes   tensor-parallel and pipeline transfers are fully exposed; gradients overlap with one micro-batch's
              backward pass, sharded weights with compute; no data wait, no stragglers
    Checked   `scalewright validate`, 833 published runs
    """
    m = np.asarray(layout.num_micro_batches, dtype=np.float64)
    num_layers = pipeline.layers_on_stage(layers=shape.layers, pp=layout.pp)
    work = _micro_batch_work(shape, machine, layout, recipe, num_layers)
    tensor = _tensor_parallel(shape, machine, layout, recipe, num_layers)
    transfer = _pipeline_transfer(shape, machine, layout, recipe)
    micro_batch_s = sum((w for w in work.values()), 0.0) + tensor + transfer
    backward_s = work["matmul_backward"] + work["attention_backward"] + work["elementwise_backward"]
    params = _params_on_stage(shape, layout)
    forward_s = micro_batch_s - backward_s
    data = _data_parallel(machine, layout, recipe, params, backward_s=backward_s, forward_s=forward_s)
    bubble = pipeline.bubble_time_s(micro_batch_time_s=micro_batch_s, pp=layout.pp, vpp=layout.vpp)
    updated = params / (layout.dp if layout.zero >= 1 else 1)

    def term(name: str, value: FloatLike, formula: str, **inputs: object) -> Breakdown:
        return Breakdown(name=name, unit="s", value=value, formula=formula, inputs=inputs)

    compute_parts = tuple(
        term(name, m * value, _FORMULA_OF[name], per_micro_batch_s=value, num_micro_batches=layout.num_micro_batches)
        for name, value in work.items()
    )
    return Breakdown(
        name="step",
        unit="s",
        formula="step.step_time",
        parts=(
            Breakdown(name="compute", unit="s", parts=compute_parts),
            term(
                "tensor_parallel", m * tensor, "collectives.all_reduce_time_s", tp=layout.tp, per_micro_batch_s=tensor
            ),
            term(
                "pipeline_transfer", m * transfer, "collectives.send_time_s", pp=layout.pp, per_micro_batch_s=transfer
            ),
            term("pipeline_bubble", bubble, "pipeline.bubble_time_s", pp=layout.pp, vpp=layout.vpp),
            data,
            term(
                "optimizer",
                compute.optimizer_time_s(num_params_per_device=updated, recipe=recipe, machine=machine),
                "compute.optimizer_time_s",
                num_params=updated,
            ),
        ),
    )


_FORMULA_OF = {
    "matmul_forward": "compute.gemm_time_s",
    "matmul_backward": "compute.gemm_time_s",
    "attention_forward": "compute.flash_attention_time_s",
    "attention_backward": "compute.flash_attention_time_s",
    "elementwise_forward": "compute.elementwise_bytes_per_layer",
    "elementwise_backward": "compute.elementwise_bytes_per_layer",
    "head": "compute.gemm_time_s",
    "recompute": "compute.gemm_time_s",
}


def _micro_batch_work(
    shape: TransformerShape, machine: Machine, layout: Layout, recipe: Recipe, num_layers: FloatLike
) -> dict[str, FloatLike]:
    """Device seconds of one micro-batch on the fullest stage. The output layer weighs on the last stage, which
    the others wait for; the embedding look-up is left out (below 1 % of a step)."""
    tokens = layout.mbs * float(shape.seq)
    gemms = compute.layer_gemms(shape, layout)
    matmul = compute.matmul_times(gemms=gemms, tokens=tokens, machine=machine, recipe=recipe)
    attention = compute.attention_times(shape=shape, layout=layout, machine=machine, recipe=recipe)
    elementwise = compute.elementwise_times(shape=shape, layout=layout, machine=machine, recipe=recipe)
    head_gemm = {"head": (shape.vocab / layout.tp, float(shape.hidden))}
    head = compute.matmul_times(gemms=head_gemm, tokens=tokens, machine=machine, recipe=recipe, head=True)
    again: FloatLike = 0.0
    if layout.recompute == "full":
        again = matmul.forward_s + attention.forward_s + elementwise.forward_s
    elif layout.recompute == "selective":
        again = attention.forward_s
    return {
        "matmul_forward": num_layers * matmul.forward_s,
        "attention_forward": num_layers * attention.forward_s,
        "elementwise_forward": num_layers * elementwise.forward_s,
        "matmul_backward": num_layers * matmul.backward_s,
        "attention_backward": num_layers * attention.backward_s,
        "elementwise_backward": num_layers * elementwise.backward_s,
        "head": head.forward_s + head.backward_s,
        "recompute": num_layers * again,
    }


def _tensor_parallel(
    shape: TransformerShape, machine: Machine, layout: Layout, recipe: Recipe, num_layers: FloatLike
) -> FloatLike:
    """Exposed tensor-parallel sums of one micro-batch: two forward, two backward, two more when recomputed."""
    path = collectives.group_path(machine, num_ranks=layout.tp, stride=1)
    size = layout.mbs * float(shape.seq) * shape.hidden * recipe.activation_bytes
    once = collectives.all_reduce_time_s(
        size_bytes=size, num_ranks=layout.tp, bytes_per_s=path.bytes_per_s, latency_s=path.latency_s
    )
    per_layer = 6.0 if layout.recompute == "full" else 4.0
    return num_layers * per_layer * once


def _pipeline_transfer(shape: TransformerShape, machine: Machine, layout: Layout, recipe: Recipe) -> FloatLike:
    """Activations forward and gradients back between neighbouring stages, once per virtual stage."""
    path = collectives.group_path(machine, num_ranks=layout.pp, stride=layout.tp * layout.cp * layout.dp)
    size = layout.mbs * float(shape.seq) * shape.hidden * recipe.activation_bytes
    size = size / (layout.tp if layout.sp else 1)
    once = collectives.send_time_s(size_bytes=size, bytes_per_s=path.bytes_per_s, latency_s=path.latency_s)
    has_pipeline = np.asarray(np.asarray(layout.pp) > 1, dtype=np.float64)
    total = has_pipeline * 2.0 * layout.vpp * once
    return total if np.ndim(total) else float(total)


def _params_on_stage(shape: TransformerShape, layout: Layout) -> FloatLike:
    """Parameters of one device on the first stage: its layers and the embedding, split by tensor parallelism."""
    num_layers = pipeline.layers_on_stage(layers=shape.layers, pp=layout.pp)
    return (num_layers * layer_params(shape) + _edge_params(shape, layout)) / layout.tp


def layer_params(shape: TransformerShape) -> int:
    norms = 2 * shape.hidden * (2 if shape.norm_bias else 1)
    return attention_params(shape) + expert_params(shape, shape.ffn_hidden) + norms


def _edge_params(shape: TransformerShape, layout: Layout) -> FloatLike:
    """Embedding on the first stage, plus the output layer when both are on one device."""
    table = shape.vocab * shape.hidden
    positions = shape.num_positions * shape.hidden if shape.positions == "learned" else 0
    alone = np.asarray(np.asarray(layout.pp) == 1, dtype=np.float64)
    untied = 0.0 if shape.tied_embeddings else table * alone
    total = table + positions + untied
    return total if np.ndim(total) else float(total)


def _data_parallel(
    machine: Machine, layout: Layout, recipe: Recipe, params: FloatLike, *, backward_s: FloatLike, forward_s: FloatLike
) -> Breakdown:
    """What gradient and weight exchange adds to the step after overlap."""
    path = collectives.group_path(machine, num_ranks=layout.dp, stride=layout.tp * layout.cp)

    def gather(width_bytes: float) -> FloatLike:
        return collectives.gather_time_s(
            size_bytes=params * width_bytes, num_ranks=layout.dp, bytes_per_s=path.bytes_per_s, latency_s=path.latency_s
        )

    m = np.asarray(layout.num_micro_batches, dtype=np.float64)
    if layout.zero >= 3:
        forward = m * np.maximum(gather(recipe.weight_bytes) - forward_s, 0.0)
        backward_traffic = gather(recipe.weight_bytes) + gather(recipe.communication_bytes)
        exposed = forward + m * np.maximum(backward_traffic - backward_s, 0.0)
    else:
        gradients = 2.0 * gather(recipe.communication_bytes)
        if layout.zero >= 1:
            gradients = gather(recipe.communication_bytes) + gather(recipe.weight_bytes)
        exposed = np.maximum(gradients - backward_s, 0.0)
    return Breakdown(
        name="data_parallel",
        unit="s",
        value=exposed if np.ndim(exposed) else float(exposed),
        formula="collectives.gather_time_s",
        inputs={"dp": layout.dp, "zero": layout.zero, "num_params": params, "bytes_per_s": path.bytes_per_s},
    )


def step_memory(*, shape: TransformerShape, layout: Layout, recipe: Recipe) -> Breakdown:
    """Peak allocated bytes on the worst rank.

    Equation  state of the stage + in-flight activations + the layer being recomputed + logits
    Source    korthikanti2022 (arXiv:2205.05198), section 4; rajbhandari2020 (arXiv:1910.02054), section 3
    Assumes   the worst rank carries the first stage's in-flight micro-batches, or the last stage's logits: the larger
              of the two; no fragmentation (that is `reserved`)
    Checked   `scalewright validate`, 32 published peaks
    """
    num_layers = pipeline.layers_on_stage(layers=shape.layers, pp=layout.pp)
    params = _params_on_stage(shape, layout)
    state = memory.state_bytes_per_param(recipe=recipe, dp=layout.dp, zero=layout.zero)
    held = pipeline.in_flight_micro_batches(pp=layout.pp, vpp=layout.vpp, num_micro_batches=layout.num_micro_batches)

    def stored(recompute: str) -> FloatLike:
        return memory.activation_bytes_per_layer(
            shape=shape,
            micro_batch=layout.mbs,
            tp=layout.tp,
            sequence_parallel=layout.sp,
            recompute="full" if recompute == "full" else "none",
            width_bytes=recipe.activation_bytes,
        )

    in_flight = num_layers * stored(layout.recompute)
    first = held * in_flight
    logits = memory.logits_bytes(shape=shape, layout=layout, width_bytes=recipe.activation_bytes)
    last = in_flight + logits
    has_one_stage = np.asarray(np.asarray(layout.pp) == 1, dtype=np.float64)
    activations = np.where(has_one_stage > 0, last, np.maximum(first, last))
    working = stored("none") if layout.recompute == "full" else 0.0
    gathered = memory.gathered_weight_bytes(
        largest_unit_params=layer_params(shape) / layout.tp, recipe=recipe, zero=layout.zero, dp=layout.dp
    )

    def term(name: str, value: FloatLike, formula: str, **inputs: object) -> Breakdown:
        plain = value if np.ndim(value) else float(value)
        return Breakdown(name=name, unit="bytes", value=plain, formula=formula, inputs=inputs)

    return Breakdown(
        name="peak_allocated",
        unit="bytes",
        formula="step.step_memory",
        parts=(
            *(
                term(name, params * width, "memory.state_bytes_per_param", num_params=params, bytes_per_param=width)
                for name, width in state.items()
            ),
            term("gathered_weights", gathered, "memory.gathered_weight_bytes", zero=layout.zero),
            term(
                "activations", activations, "memory.activation_bytes_per_layer", in_flight=held, num_layers=num_layers
            ),
            term("recompute_working_set", working, "memory.activation_bytes_per_layer"),
        ),
    )
