"""One training step of a transformer: time and memory, assembled from the parts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scalewright.catalog.types import TransformerShape
from scalewright.costs import collectives, compute, hostmem, interval, pipeline, power, room, storage
from scalewright.costs.breakdown import Breakdown, FloatLike, PassTimes, Words, seconds_term
from scalewright.costs.footprint import device_bytes, needed_bytes, reserved_bytes, step_memory
from scalewright.costs.layer import (
    LayerTimes,
    context_path,
    distinct_layers,
    layer_times,
    spread,
    tensor_bytes,
    tensor_path,
)
from scalewright.costs.setting import Setting
from scalewright.costs.shards import Shards, busiest_shards, busiest_trained, num_expert_copies, num_spread_params
from scalewright.errors import NotExpressedError
from scalewright.workload.flop import training_flop_per_sample, transformer_forward_flop
from scalewright.workload.layout import Layout
from scalewright.workload.model import ModelSpec

TENSORS_PER_LAYER, TENSORS_AROUND = 12, 4
"""Tensors of weights that an optimizer updates one by one: two norms, four products with their biases; embeddings and
final norm (run/language/model.py)."""
BACKWARD_FRAC = 2.0 / 3.0
"""Part of a micro-batch's time that is its backward pass, behind which gradients are exchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """What one step costs. Every number may be a column over layouts."""

    time: Breakdown
    memory: Breakdown
    """Peak allocated on the worst rank."""
    host_memory: Breakdown
    """What the processes of one node hold in its host memory."""
    interval_s: tuple[FloatLike, FloatLike]
    bound_s: FloatLike
    """The arithmetic that is executed, at dense peak: without what fused causal kernels skip. No run is faster."""
    reserved_bytes: FloatLike
    """What the framework's allocator takes for that peak."""
    device_bytes: FloatLike
    """What nvidia-smi or rocm-smi shows: context and communicators as well."""
    needed_bytes: FloatLike
    """The least of it that a device must have: the allocator can give back what it does not use."""
    fits: FloatLike
    """1 if the device has what is needed, and the hosts hold the host memory (if known)."""
    fits_host: FloatLike
    """1 where the hosts' memory suffices, or is not known."""
    model_flop: FloatLike
    hardware_flop: FloatLike
    """Model work plus what is computed again, attention over the full square by convention."""
    mfu_frac: FloatLike
    hfu_frac: FloatLike

    def at(self, index: int) -> StepCost:
        def pick(value: FloatLike) -> FloatLike:
            return float(value[index]) if isinstance(value, np.ndarray) else value

        return StepCost(
            time=self.time.at(index),
            memory=self.memory.at(index),
            host_memory=self.host_memory.at(index),
            interval_s=(pick(self.interval_s[0]), pick(self.interval_s[1])),
            bound_s=pick(self.bound_s),
            reserved_bytes=pick(self.reserved_bytes),
            device_bytes=pick(self.device_bytes),
            needed_bytes=pick(self.needed_bytes),
            fits=pick(self.fits),
            fits_host=pick(self.fits_host),
            model_flop=pick(self.model_flop),
            hardware_flop=pick(self.hardware_flop),
            mfu_frac=pick(self.mfu_frac),
            hfu_frac=pick(self.hfu_frac),
        )


def why_not_expressed(spec: ModelSpec) -> str | None:
    """The first thing about a model that these cost models do not cover, or None."""
    shape = spec.shape
    if not isinstance(shape, TransformerShape):
        return "vision models are not covered yet"
    if shape.encoder_layers:
        return "encoder-decoder models are not covered yet"
    return None


def step_cost(*, spec: ModelSpec, setting: Setting) -> StepCost:
    """Cost of one step for one layout or for columns of them: the only code path."""
    reason = why_not_expressed(spec)
    if reason is not None:
        raise NotExpressedError(f"{spec.id}: {reason}")
    layout, machine = setting.layout, setting.machine
    time = step_time(setting)
    used = step_memory(setting)
    total_s = time.total
    needed = needed_bytes(setting, used)
    host = hostmem.training_host_memory(setting)
    on_host = np.inf if machine.host_memory_bytes is None else machine.host_memory_bytes
    fits_host = np.asarray(host.total <= on_host, dtype=np.float64)[()]
    model_flop = training_flop_per_sample(spec, frozen=setting.mode.is_lora) * layout.gbs
    hardware_flop = model_flop + recompute_flop_per_sample(setting.shape, layout) * layout.gbs
    executed_flop = hardware_flop - skipped_flop_per_sample(setting) * layout.gbs
    bound_s = executed_flop / (layout.num_gpus * machine.peak_flop_per_s(setting.recipe.matmul))
    fastest_s = executed_flop / (layout.num_gpus * machine.matmul_flop_per_s(setting.recipe.matmul))
    low_s, high_s = _interval_s(setting, total_s)
    rate = total_s * layout.num_gpus * machine.peak_flop_per_s(setting.recipe.matmul)
    return StepCost(
        time=time,
        memory=used,
        host_memory=host,
        # No step beats the best matrix product that anybody published for the device.
        interval_s=(np.minimum(np.maximum(low_s, fastest_s), total_s), high_s),
        bound_s=bound_s,
        reserved_bytes=reserved_bytes(setting, used),
        device_bytes=device_bytes(setting, used),
        needed_bytes=needed,
        fits=np.asarray(room.holds(machine, needed), dtype=np.float64)[()] * fits_host,
        fits_host=fits_host,
        model_flop=model_flop,
        hardware_flop=hardware_flop,
        mfu_frac=model_flop / rate,
        hfu_frac=hardware_flop / rate,
    )


def _interval_s(setting: Setting, time_s: FloatLike) -> tuple[FloatLike, FloatLike]:
    return interval.shared_interval_s(
        interval.interval_s(time_s=time_s, setting=setting), time_s=time_s, setting=setting,
        time_on=lambda machine: step_time(replace(setting, machine=machine)).total,
    )  # fmt: skip


def recompute_flop_per_sample(shape: TransformerShape, layout: Layout) -> float:
    """Work done again in the backward pass: whole layers, every second product, latent up-projections, or scores."""
    parts = transformer_forward_flop(shape)
    if layout.recompute == "full":
        return sum(v for name, v in parts.items() if name != "head")
    if layout.recompute == "operators":
        return sum(v for name, v in parts.items() if name not in ("head", "attention_scores")) / 2.0
    if layout.recompute == "modules":
        return shape.layers * latent_up_flop(shape)
    return parts["attention_scores"] if layout.recompute == "selective" else 0.0


def latent_up_flop(shape: TransformerShape) -> float:
    """Forward work of one layer's up-projections from the latents of queries, keys and values; 0 without latents."""
    if shape.mla is None:
        return 0.0
    mla, a = shape.mla, shape.heads
    query = (mla.q_lora_rank or shape.hidden) * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    return 2.0 * shape.seq * a * (query + mla.kv_lora_rank * (mla.qk_nope_head_dim + mla.v_head_dim))


def skipped_flop_per_sample(setting: Setting) -> float:
    """Half of the attention square, which fused causal kernels never compute; model FLOP count it by convention."""
    if not (setting.stack.fused_attention and setting.shape.causal):
        return 0.0
    passes = 4.0 if setting.layout.recompute in ("full", "selective") else 3.0
    return passes * transformer_forward_flop(setting.shape)["attention_scores"] / 2.0


def step_time(setting: Setting) -> Breakdown:
    """Seconds of one step: the fullest pipeline rank's work for every micro-batch, what it waits for, and the update.

    Equation  t = (m (t_layers + t_head + t_pp) + bubble) (1 + stragglers) + exposed t_dp + t_optimizer + t_host
    Source    narayanan2021 (arXiv:2104.04473), section 3
    Assumes   a layer takes the longer of device and host; the head, and multi-token-prediction modules, weigh on the
              last rank, which may have fewer layers; stragglers grow with the logarithm of the node count; samples
              are prepared beside the step before
    Checked   `scalewright validate`, published training runs
    """
    layout = setting.layout
    distinct, index = distinct_layers(setting)
    layer, layers = layer_times(distinct).at(index), setting.num_layers
    head = spread(compute.head_times(distinct), index)
    head_s = head.forward_s + head.backward_s
    head_s = head_s + setting.shape.num_mtp_layers * (layer.total_s + head_s)  # each a layer and a head of its own
    spare_s = (layers - setting.num_layers_on(layout.pp - 1)) * layer.total_s
    visible_head_s = np.maximum(head_s - spare_s, 0.0)
    shards = busiest_shards(setting)
    micro_batch_s = layers * layer.total_s + visible_head_s
    computing = _compute_terms(setting, layer, head_s=head_s, visible_head_s=visible_head_s)
    pipe = _pipeline_path(setting)
    transfer_s = _pipeline_transfer(setting, pipe)
    talking = _communication_terms(
        setting,
        layer,
        _exchanges(distinct, index),
        pipe,
        transfer_s=transfer_s,
        data=_data_parallel(setting, shards, layer, micro_batch_s=micro_batch_s, transfer_s=transfer_s),
    )
    waiting = _waiting_terms(setting, layer, micro_batch_s=micro_batch_s, transfer_s=transfer_s)
    update = _update(setting, shards, layer)
    power = _power_wait(setting, computing, computing.total + talking.total + waiting.total + update.total)
    waiting = replace(waiting, parts=(*waiting.parts, *power))
    data = _data_wait(setting, computing.total + talking.total + waiting.total + update.total)
    waiting = replace(waiting, parts=(*waiting.parts, data))
    return Breakdown(name="step", unit="s", formula="step.step_time", parts=(computing, talking, waiting, update))


def _power_wait(setting: Setting, computing: Breakdown, step_s: FloatLike) -> tuple[Breakdown, ...]:
    """What the power limit takes from products, where a calibration measured them both cool and without a pause."""
    held = setting.machine.held_frac.get(setting.recipe.matmul)
    if held is None:
        return ()
    kinds = ("matmul_forward", "matmul_backward", "attention_forward", "attention_backward")
    layers: FloatLike = sum((computing.part(kind).total for kind in kinds), start=0.0)
    products = _sum(compute.head_products(setting)) * setting.num_micro_batches + layers
    moving_frac = setting.constants.moving_power_share.value
    wait = power.power_wait_s(product_s=products, step_s=step_s, held_frac=held, moving_frac=moving_frac)
    return (seconds_term("power_limit", wait, "power.power_wait_s", held_frac=held),)


def _data_wait(setting: Setting, step_s: FloatLike) -> Breakdown:
    """Text for one step: read from storage and packed by the loaders of each device."""
    layout, feed, c = setting.layout, setting.feed, setting.constants
    num_tokens = layout.gbs * float(setting.shape.seq)
    nodes = np.maximum(layout.num_gpus / setting.machine.gpus_per_node, 1.0)
    rate: FloatLike = np.inf
    files: FloatLike = np.inf
    if feed.storage is not None:
        rate = storage.job_bytes_per_s(storage=feed.storage, direction="read", num_nodes=nodes, constants=c)
        files = storage.num_job_files_per_s(storage=feed.storage, num_nodes=nodes, constants=c)
    wait = storage.data_wait_s(
        step_s=step_s, step_bytes=num_tokens * c.token_bytes.value, read_bytes_per_s=rate,
        loader_s_per_device=num_tokens / layout.dp * c.token_loader_time.value, num_loaders_per_device=feed.num_loaders,
        num_files=layout.gbs if feed.one_file_each else 0.0, num_files_per_s=files,
    )  # fmt: skip
    return seconds_term("data", wait, "storage.data_wait_s", num_tokens=num_tokens, num_loaders=feed.num_loaders)


def _compute_terms(setting: Setting, layer: LayerTimes, *, head_s: FloatLike, visible_head_s: FloatLike) -> Breakdown:
    """What the device computes in a step, on the fullest pipeline rank."""
    m = setting.num_micro_batches
    per_step = m * setting.num_layers

    def both(name: str, times: PassTimes, formula: str) -> tuple[Breakdown, Breakdown]:
        forward = seconds_term(f"{name}_forward", per_step * times.forward_s, formula, per_layer_s=times.forward_s)
        return forward, seconds_term(
            f"{name}_backward", per_step * times.backward_s, formula, per_layer_s=times.backward_s
        )

    attention = "flash_attention_time_s" if setting.stack.fused_attention else "unfused_attention_times"
    return Breakdown(
        name="compute",
        unit="s",
        parts=(
            *both("matmul", layer.matmul, "compute.gemm_time_s"),
            *both("attention", layer.attention, f"attention.{attention}"),
            *both("elementwise", layer.elementwise, "compute.elementwise_bytes_per_layer"),
            seconds_term("recompute", per_step * layer.again_s, "step.step_time", mode=setting.layout.recompute),
            seconds_term("head_and_loss", m * visible_head_s, "compute.head_times", hidden_s=head_s - visible_head_s),
        ),
    )


def _exchanges(distinct: Setting, index: NDArray[np.int64] | None) -> dict[str, dict[str, object]]:
    """Algorithm and span of each kind of exchange inside a layer, for people."""
    layout = distinct.layout
    no_exchange: dict[str, object] = {"algorithm": "none", "span": "none"}
    algorithm = collectives.all_reduce_algorithm(
        size_bytes=tensor_bytes(distinct), path=tensor_path(distinct), in_pieces=layout.sp
    )
    exchanges: dict[str, dict[str, object]] = {
        "tensor": {"algorithm": algorithm, "span": tensor_path(distinct).span},
        "context": no_exchange,
        "expert": no_exchange,
    }
    if np.max(layout.cp) > 1:
        exchanges["context"] = {"algorithm": "messages", "span": context_path(distinct).span}
    if distinct.shape.moe is not None:
        expert = collectives.group_path(
            distinct.machine, num_ranks=layout.ep, stride=1, num_job_devices=layout.num_gpus
        )
        exchanges["expert"] = {"algorithm": "all to all", "span": expert.span}
    if index is None:
        return exchanges
    return {k: {n: v.spread(index) if isinstance(v, Words) else v for n, v in w.items()} for k, w in exchanges.items()}


def _communication_terms(
    setting: Setting,
    layer: LayerTimes,
    exchanges: dict[str, dict[str, object]],
    pipe: collectives.Path,
    *,
    transfer_s: FloatLike,
    data: Breakdown,
) -> Breakdown:
    """Transfers that the step waits for, after overlap."""
    layout, m = setting.layout, setting.num_micro_batches
    per_step = m * setting.num_layers
    tensor, context, expert = (per_step * _sum(times) for times in (layer.tensor, layer.context, layer.expert))
    messages = {"algorithm": "messages", "span": pipe.span}
    parts = (
        seconds_term("tensor_parallel", tensor, "collectives.all_reduce_time_s", tp=layout.tp, **exchanges["tensor"]),
        seconds_term("context_parallel", context, "collectives.send_time_s", cp=layout.cp, **exchanges["context"]),
        seconds_term("expert_parallel", expert, "collectives.all_to_all_time_s", ep=layout.ep, **exchanges["expert"]),
        seconds_term("pipeline_transfer", m * transfer_s, "collectives.send_time_s", pp=layout.pp, **messages),
        data,
    )
    return Breakdown(name="communication", unit="s", parts=parts)


def _waiting_terms(
    setting: Setting, layer: LayerTimes, *, micro_batch_s: FloatLike, transfer_s: FloatLike
) -> Breakdown:
    """Time in which the device has nothing to do: for its host, for other pipeline ranks, for slower nodes."""
    layout, m = setting.layout, setting.num_micro_batches
    even = setting.shape.layers / layout.pp * layer.total_s
    bubble = pipeline.bubble_time_s(micro_batch_time_s=even + transfer_s, pp=layout.pp, vpp=layout.vpp)
    nodes = np.maximum(layout.num_gpus / setting.machine.gpus_per_node, 1.0)
    straggle = setting.constants.straggler_growth.value * np.log2(nodes)
    repeated = m * (micro_batch_s + transfer_s) + bubble
    per_step = m * setting.num_layers
    host, gaps = per_step * layer.host_wait_s, per_step * layer.gap_s
    return Breakdown(
        name="waiting",
        unit="s",
        parts=(
            seconds_term("host", host, "compute.host_times", stack=setting.stack.id),
            seconds_term("kernel_gaps", gaps, "compute.kernel_gap_times", per_layer_s=layer.gap_s),
            seconds_term("pipeline_bubble", bubble, "pipeline.bubble_time_s", pp=layout.pp, vpp=layout.vpp),
            seconds_term("stragglers", repeated * straggle, "step.step_time", num_nodes=nodes),
        ),
    )


def _sum(times: PassTimes) -> FloatLike:
    return times.forward_s + times.backward_s


def _update(setting: Setting, whole: Shards, layer: LayerTimes) -> Breakdown:
    """The optimizer's pass over this device's share, and the host's work once per step."""
    recipe, layout, machine = setting.recipe, setting.layout, setting.machine
    shards = busiest_trained(setting, whole)
    bytes_per_param = recipe.gradient_bytes + 2.0 * recipe.optimizer_bytes + recipe.weight_bytes
    updated = num_spread_params(setting, shards) if layout.zero >= 1 else shards.num_params
    num_tensors = TENSORS_PER_LAYER * setting.num_layers + TENSORS_AROUND
    behind = layer.host_wait_s / layer.total_s  # a host that is ahead of its device updates unseen
    once = setting.stack_costs.update_host_s(num_tensors=num_tensors, visible_frac=behind)
    moved: FloatLike = 0.0
    rate: float | None = machine.hbm_bytes_per_s
    if setting.mode.is_offload:  # the optimizer runs on the host, over the share that is left when all is spread
        updated, rate = num_spread_params(setting, shards), machine.host_memory_bytes_per_s
        moved = hostmem.offload_transfer_s(
            num_params=updated, recipe=recipe, host_bytes_per_s=machine.host_link_bytes_per_s
        )
    adam = compute.optimizer_time_s(
        num_params=updated, bytes_per_s=np.inf if rate is None else rate,
        bytes_per_param=machine.num_update_passes_of(setting.stack) * bytes_per_param,
    )  # fmt: skip
    return Breakdown(
        name="update",
        unit="s",
        parts=(
            seconds_term("optimizer", adam, "compute.optimizer_time_s", num_params=updated),
            seconds_term("offload_transfer", moved, "hostmem.offload_transfer_s", num_params=updated),
            seconds_term("host_per_step", once, "step.step_time"),
            _gradient_sum(setting, shards),
            *_gradient_copies(setting, shards, recipe.gradient_bytes),
        ),
    )


def _gradient_sum(setting: Setting, trained: Shards) -> Breakdown:
    """Gradients of each micro-batch but the first added to those before; of a shard, where the exchange comes first."""
    is_apart = not setting.stack.keeps_gradients  # else the products that make them add them
    num_sums = is_apart * (setting.num_micro_batches - 1.0)
    once = compute.gradient_sum_time_s(
        num_params=num_spread_params(setting, trained) if setting.layout.zero >= 2 else trained.num_params,
        num_tensors=TENSORS_PER_LAYER * setting.num_layers + TENSORS_AROUND,
        gradient_bytes=setting.recipe.gradient_bytes,
        num_passes=setting.constants.gradient_sum_passes.value,
        bytes_per_s=setting.machine.hbm_bytes_per_s,
        kernel_gap_s=setting.stack_costs.kernel_gap_s,
    )
    return seconds_term("gradient_sums", num_sums * once, "compute.gradient_sum_time_s", num_sums=num_sums)


def _gradient_copies(setting: Setting, shards: Shards, gradient_bytes: float) -> tuple[Breakdown, ...]:
    """Gradients gathered into buckets for their exchange and put back, where a calibration says that they are."""
    machine, layout = setting.machine, setting.layout
    if machine.num_copy_passes == 0.0:
        return ()
    copied = np.asarray(np.asarray(layout.dp * layout.cp) > 1, dtype=np.float64)[()]
    time = copied * machine.num_copy_passes * shards.num_params * gradient_bytes / machine.hbm_bytes_per_s
    return (seconds_term("gradient_copies", time, "step.step_time", num_passes=machine.num_copy_passes),)


def _pipeline_path(setting: Setting) -> collectives.Path:
    layout = setting.layout
    stride = layout.tp * layout.cp * layout.dp
    return collectives.group_path(setting.machine, num_ranks=layout.pp, stride=stride, num_job_devices=layout.num_gpus)


def _pipeline_transfer(setting: Setting, path: collectives.Path) -> FloatLike:
    """Activations forward and gradients back between neighbouring pipeline ranks, once per virtual rank."""
    layout = setting.layout
    size = setting.num_tokens * setting.shape.hidden * setting.recipe.activation_bytes / setting.norm_split
    once = collectives.send_time_s(size_bytes=size, path=path)
    return 2.0 * layout.vpp * once * setting.constants.transfer_exposure.value


def _taken_s(setting: Setting, layer: LayerTimes, path: collectives.Path, *, transfer_s: FloatLike) -> FloatLike:
    """Time of one backward pass in which the links that gradients need carry other transfers.

    Equation  t = [ring enters a node more than once] L t_tp + [ring leaves the node] t_pp / 2
    Source    narayanan2021 (arXiv:2104.04473), section 3.3: which exchange runs over which link
    Assumes   visible transfers come first: tensor-parallel sums have the links inside a node, messages of
              the pipeline the adapters; gradients wait while they last, and hide behind the rest of the pass
    Checked   tests/costs/test_contention.py: tensor parallelism takes cover from gradients that share its links only
    """
    tensor = setting.num_layers * layer.tensor.backward_s * (np.asarray(path.num_here) > 1)
    return tensor + path.spans_nodes * transfer_s / 2.0


def _data_parallel(
    setting: Setting, shards: Shards, layer: LayerTimes, *, micro_batch_s: FloatLike, transfer_s: FloatLike
) -> Breakdown:
    """What gradient and weight exchange adds to the step after overlap."""
    layout, recipe, constants = setting.layout, setting.recipe, setting.constants
    sharded = layout.zero >= 3
    devices = layout.num_gpus
    path = collectives.group_path(
        setting.machine, num_ranks=layout.dp * layout.cp, stride=layout.tp, num_job_devices=devices
    )
    calls = setting.num_layers * setting.stack.gathers_per_layer if sharded else 1.0

    def gather(width_bytes: float, shards: Shards, op: str) -> FloatLike:
        dense = collectives.gather_time_s(size_bytes=shards.num_dense * width_bytes, path=path, num_calls=calls, op=op)
        if setting.shape.moe is None or not np.any(shards.num_routed):
            return dense
        copies = num_expert_copies(setting)
        stride = layout.ep * setting.expert_tp
        expert_path = collectives.group_path(setting.machine, num_ranks=copies, stride=stride, num_job_devices=devices)
        routed = shards.num_routed * width_bytes
        return dense + collectives.gather_time_s(size_bytes=routed, path=expert_path, num_calls=calls, op=op)

    trained = busiest_trained(setting, shards)
    weights = gather(recipe.weight_bytes, shards if sharded else trained, "all-gather")
    gradients = gather(
        recipe.communication_bytes, trained, "reduce-scatter" if layout.zero >= 1 else collectives.HALF_SUM
    )
    taken_s = _taken_s(setting, layer, path, transfer_s=transfer_s)
    cover_s = constants.gradient_overlap.value * np.maximum(BACKWARD_FRAC * micro_batch_s - taken_s, 0.0)
    after: FloatLike = 0.0
    if sharded:
        calls_per_step, exchange = setting.num_micro_batches, 2.0 * weights + gradients
        cover_s = constants.gradient_overlap.value * np.maximum(micro_batch_s - 2.0 * taken_s, 0.0)
    elif layout.zero == 2:  # without a pipeline, gradients are sharded as each micro-batch brings them
        calls_per_step = np.where(np.asarray(layout.pp) == 1, setting.num_micro_batches, 1.0)[()]
        exchange, after = gradients, weights
    else:
        calls_per_step, exchange = 1.0, gradients + (weights if layout.zero >= 1 else gradients)
    hidden = np.minimum(exchange, cover_s) if setting.stack.overlaps_gradients else 0.0 * exchange
    exposed = calls_per_step * (exchange - hidden * (1.0 - constants.overlap_cost.value)) + after
    return Breakdown(
        name="data_parallel",
        unit="s",
        value=exposed,
        formula="collectives.gather_time_s",
        inputs={
            "dp": layout.dp,
            "zero": layout.zero,
            "num_params": shards.num_params,
            "bytes_per_s": path.bytes_per_s,
            "algorithm": "ring",
            "span": path.span,
            "slowdown": path.slowdown,
        },
    )
