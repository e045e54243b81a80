"""Generation: prompts read at once, answers written token by token, and the cache between them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from scalewright.catalog.types import Stack, TransformerShape
from scalewright.costs import collectives, compute, memory, room
from scalewright.costs.breakdown import Breakdown, FloatLike, bytes_term, seconds_term
from scalewright.costs.machine import Machine
from scalewright.costs.roofline import Kind, Operation, Phase, product_cache_bytes
from scalewright.costs.setting import Setting
from scalewright.costs.shards import shards_on
from scalewright.workload.layout import Layout
from scalewright.workload.model import expert_params
from scalewright.workload.precision import Recipe

STORED_BYTES = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "bf16-lean": 2.0, "bf16-pure": 2.0, "fp8": 1.0,
                "mxfp8": 1.0, "nvfp4": 0.5}  # fmt: skip
"""Bytes of a stored weight by recipe; training keeps narrow recipes in 16 bit, serving does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One copy of a model that generates: on a machine, split by tensor parallelism, in a precision."""

    shape: TransformerShape
    machine: Machine
    stack: Stack
    recipe: Recipe
    tp: int
    weight_bytes: float
    """Width of a stored weight."""
    cache_bytes: float
    """Width of a cached element."""

    def setting(self, *, num_sequences: int, seq: int) -> Setting:
        """The same question as the training models ask it: a batch of sequences of `seq` tokens; 1 when decoding."""
        layout = Layout(tp=self.tp, mbs=max(num_sequences, 1), gbs=max(num_sequences, 1))
        shape = self.shape.model_copy(update={"seq": seq})
        return Setting(shape=shape, machine=self.machine, layout=layout, recipe=self.recipe, stack=self.stack)


def cache_bytes_per_token(*, shape: TransformerShape, tp: int, width_bytes: float) -> float:
    """Keys and values one device keeps for one token.

    Equation  2 l max(k/t, 1) d w;  latent attention: l (c + r) w, on every rank
    Source    kwon2023 (PagedAttention, arXiv:2309.06180), section 3; deepseek2024 (arXiv:2405.04434), section 2.1.2
    Assumes   heads are repeated where there are fewer than devices; every layer attends to the whole context
    Checked   tests/costs/test_generation.py: OPT-13B 800 KB, DeepSeek-V3 70,272 bytes
    """
    if shape.mla is not None:
        return shape.layers * float(shape.mla.kv_lora_rank + shape.mla.qk_rope_head_dim) * width_bytes
    return 2.0 * shape.layers * max(shape.kv_heads / tp, 1.0) * shape.head_dim * width_bytes


def num_experts_touched(*, num_experts: int, top_k: int, num_tokens: float) -> float:
    """Different experts that a batch needs in one layer.

    Equation  E (1 - (1 - k/E)^T)
    Source    the expected number of occupied cells, T draws of k among E
    Assumes   tokens choose independently and evenly; real routers are less even and touch fewer
    Checked   tests/costs/test_generation.py: k for one token, all for many
    """
    missed: float = (1.0 - top_k / num_experts) ** num_tokens
    return num_experts * (1.0 - missed)


def tensor_sum_time_s(*, size_bytes: float, serving: Serving) -> float:
    """One all-reduce of activations inside a step.

    Equation  inside a node    min(ring or tree by NCCL, a + 2 (q-1)/q S/B_direct)
              over m nodes     min(that, the direct one of a node's q + 4 l log2 m + 2 (m-1)/m S/(q B_net))
    Source    vLLM pull request 2192 and SGLang pull request 2904: custom all-reduce kernels; nccl2019 for trees
    Assumes   engines on every maker's devices have such kernels, as fast as on H100; between nodes two latencies each
              way and level, without the stalls of training, since an engine's ranks are in step
    Checked   tests/costs/test_generation.py: the 512 byte to 1 MiB table of 2, 4 and 8 H100; tests/golden/
              nccl_tests_h100.toml: 8 H100 on two nodes, 64 KiB to 1 MiB
    """
    machine, n = serving.machine, serving.tp
    if n == 1:
        return 0.0
    path = collectives.group_path(machine, num_ranks=n, stride=1)
    ring = float(collectives.all_reduce_time_s(size_bytes=size_bytes, path=path))
    c, q, m = machine.constants, min(n, machine.gpus_per_node), float(path.num_nodes)
    direct = c.direct_reduce_offset.value + 2.0 * (q - 1) / q * size_bytes / c.direct_reduce_bandwidth.value
    if n > machine.gpus_per_node:
        latency = 4.0 * float(path.between_latency_s) / c.latency_factor.value
        direct += latency * math.log2(m) + 2.0 * (m - 1.0) / m * size_bytes / (q * float(path.network_bytes_per_s))
    return min(ring, direct)


def cached_attention_time_s(*, serving: Serving, num_sequences: float, num_context: float) -> float:
    """Attention of one new token of each sequence to its cache, all layers.

    Equation  max(b s C / B, b s l 4 a d / (t F));  latent attention, absorbed: 2 a (2 c + r) operations
    Source    pope2022 (Efficiently Scaling Transformer Inference, arXiv:2211.05102), section 3.3
    Assumes   the cache crosses memory once at the streaming rate, the sequences' shares spread over the device
    Checked   tests/costs/test_generation.py: linear in batch and context
    """
    shape, machine, t = serving.shape, serving.machine, serving.tp
    tokens = num_sequences * num_context
    cached = cache_bytes_per_token(shape=shape, tp=t, width_bytes=serving.cache_bytes)
    per_token = 4.0 * shape.heads * shape.head_dim
    if shape.mla is not None:
        per_token = 2.0 * shape.heads * (2.0 * shape.mla.kv_lora_rank + shape.mla.qk_rope_head_dim)
    rate = machine.sustained_flop_per_s(serving.recipe.attention)
    return max(tokens * cached / machine.hbm_bytes_per_s, tokens * shape.layers * per_token / t / rate)


def weight_product_time_s(*, serving: Serving, num_sequences: int) -> float:
    """Dense products of one decode step in all layers: attention projections, feed-forwards, shared experts.

    Equation  sum over products of max(2 m n k / F, w (m k + k n + m n) / B), m the batch
    Source    pope2022 (Efficiently Scaling Transformer Inference, arXiv:2211.05102), section 2; williams2009 (Roofline)
    Assumes   every weight crosses memory once a step
    Checked   tests/costs/test_generation.py: layers of Llama 3 on an H200, batches of 1 to 512
    """
    setting = serving.setting(num_sequences=num_sequences, seq=1)
    moe, frac = serving.shape.moe, setting.moe_frac
    once = _products(serving, setting, compute.attention_gemms(setting))
    if frac < 1.0:
        once += (1.0 - frac) * _products(serving, setting, compute.ffn_gemms(setting, serving.shape.ffn_hidden))
    if moe is not None and moe.num_shared:
        width = moe.num_shared * float(moe.shared_ffn or moe.expert_ffn)
        once += frac * _products(serving, setting, compute.ffn_gemms(setting, width))
    return serving.shape.layers * once


def _products(serving: Serving, setting: Setting, gemms: compute.Gemms) -> float:
    """A plain roofline: with few rows libraries split the depth, so waves of tiles do not bind (seen on an H200)."""
    rate = serving.machine.sustained_flop_per_s(serving.recipe.matmul)
    times = (
        compute.gemm_time_s(
            m=setting.num_tokens, n=n, k=k, flop_per_s=rate, bytes_per_s=serving.machine.hbm_bytes_per_s,
            width_bytes=serving.weight_bytes, num_units=None, constants=setting.constants,
        )
        for n, k in gemms.values()
    )  # fmt: skip
    return float(sum(times))


def expert_product_time_s(*, serving: Serving, num_sequences: float) -> float:
    """Routed experts of one decode step in all layers.

    Equation  max(touched x expert w / (t B), 2 b k expert / (t F)) per layer of experts
    Source    gale2022 (MegaBlocks, arXiv:2211.15841), section 5, on a roofline
    Assumes   each expert split over the tensor-parallel group; touched experts cross memory once
    Checked   tests/costs/test_generation.py: one token reads k experts, a large batch all of them
    """
    shape, machine, moe = serving.shape, serving.machine, serving.shape.moe
    if moe is None:
        return 0.0
    layers = shape.layers - min(moe.num_dense_layers, shape.layers)
    expert = expert_params(shape, moe.expert_ffn) / serving.tp
    touched = num_experts_touched(num_experts=moe.num_experts, top_k=moe.top_k, num_tokens=num_sequences)
    rate = machine.sustained_flop_per_s(serving.recipe.matmul)
    traffic = touched * expert * serving.weight_bytes / machine.hbm_bytes_per_s
    return layers * max(traffic, 2.0 * num_sequences * moe.top_k * expert / rate)


def decode_step(serving: Serving, *, num_sequences: float, num_context: float) -> Breakdown:
    """Seconds of one iteration that gives every running sequence one more token.

    Equation  t = products + experts + attention to the cache + 2 l sums + l floor + head + engine
    Source    pope2022 (Efficiently Scaling Transformer Inference, arXiv:2211.05102), section 2
    Assumes   kernels follow one another in a graph; sums over tensor parallelism are not hidden
    Checked   tests/golden/test_generation_table.py: published tokens/s
    """
    shape, c = serving.shape, serving.machine.constants
    rows = max(round(num_sequences), 1)
    size = num_sequences * shape.hidden * serving.recipe.activation_bytes
    sums = 2.0 * shape.layers * tensor_sum_time_s(size_bytes=size, serving=serving)
    setting = serving.setting(num_sequences=rows, seq=1)
    head = {"head": (shape.vocab / serving.tp, float(shape.hidden))}

    attention = cached_attention_time_s(serving=serving, num_sequences=num_sequences, num_context=num_context)
    return Breakdown(
        name="decode",
        unit="s",
        formula="generation.decode_step",
        parts=(
            seconds_term("weights", weight_product_time_s(serving=serving, num_sequences=rows),
                         "generation.weight_product_time_s", num_sequences=num_sequences),
            seconds_term("experts", expert_product_time_s(serving=serving, num_sequences=num_sequences),
                         "generation.expert_product_time_s"),
            seconds_term("cache", attention, "generation.cached_attention_time_s", num_context=num_context),
            seconds_term("head", _products(serving, setting, head), "generation.weight_product_time_s",
                         vocab=shape.vocab),
            seconds_term("tensor_parallel", sums, "generation.tensor_sum_time_s", tp=serving.tp, size_bytes=size),
            seconds_term("kernels", shape.layers * c.decode_layer_time.value, "generation.decode_step"),
            seconds_term("engine", c.engine_step_time.value, "generation.decode_step"),
        ),
    )  # fmt: skip


def prefill(serving: Serving, *, num_sequences: int, prompt_len: int) -> Breakdown:
    """Seconds to read a batch of prompts.

    Equation  t = chunks x (l (products + attention + element-wise + 2 sums) + engine), chunks of c tokens
    Source    pope2022 (Efficiently Scaling Transformer Inference, arXiv:2211.05102), section 2; kwon2023
    Assumes   whole prompts are put together up to the engine's limit; no prefix is shared, nothing is cached before
    Checked   tests/costs/test_generation.py: linear in prompts; near 2 N tokens over the sustained rate
    """
    shape, c = serving.shape, serving.machine.constants
    together = min(max(int(c.prefill_tokens.value) // prompt_len, 1), num_sequences)
    chunks = num_sequences / together
    setting = serving.setting(num_sequences=together, seq=prompt_len)
    rate = serving.machine.sustained_flop_per_s(serving.recipe.matmul)
    projections = compute.matmul_times(setting, compute.attention_gemms(setting), flop_per_s=rate).forward_s
    products = projections + compute.feed_forward_times(setting, flop_per_s=rate).forward_s
    size = together * prompt_len * shape.hidden * serving.recipe.activation_bytes
    per_layer = {
        "products": (float(products), "compute.gemm_time_s"),
        "attention": (float(compute.attention_times(setting).forward_s), "compute.flash_attention_time_s"),
        "elementwise": (float(compute.elementwise_times(setting).forward_s), "compute.elementwise_bytes_per_layer"),
        "tensor_sums": (2.0 * tensor_sum_time_s(size_bytes=size, serving=serving), "generation.tensor_sum_time_s"),
    }
    parts = tuple(
        Breakdown(name=f"prompt_{name}", unit="s", value=chunks * shape.layers * each_s, formula=formula)
        for name, (each_s, formula) in per_layer.items()
    )
    engine = Breakdown(
        name="prompt_engine", unit="s", value=chunks * c.engine_step_time.value, formula="generation.prefill"
    )
    return Breakdown(name="prefill", unit="s", formula="generation.prefill", parts=(*parts, engine))


def decode_operations(
    serving: Serving, *, num_sequences: float, num_context: float, num_steps: float
) -> list[Operation]:
    """What a device does in the decode steps of a batch: the points of a roofline."""
    rows, layers = max(round(num_sequences), 1), float(serving.shape.layers)
    setting = serving.setting(num_sequences=rows, seq=1)
    gemms = dict(compute.attention_gemms(setting))
    frac, moe = setting.moe_frac, serving.shape.moe
    if frac < 1.0:
        gemms |= compute.ffn_gemms(setting, serving.shape.ffn_hidden)
    points = [_product(serving, setting, name, size, calls=layers * num_steps) for name, size in gemms.items()]
    head = float(serving.shape.vocab / serving.tp), float(serving.shape.hidden)
    points.append(_product(serving, setting, "head", head, calls=num_steps, kind="head"))
    context = num_sequences * num_context
    moved = context * cache_bytes_per_token(shape=serving.shape, tp=serving.tp, width_bytes=serving.cache_bytes)
    time = cached_attention_time_s(serving=serving, num_sequences=num_sequences, num_context=num_context)
    work = context * layers * 4.0 * serving.shape.heads * serving.shape.head_dim / serving.tp
    points.append(_decode("cache", "attention", work, moved, time, calls=num_steps))
    if moe is not None:
        time = expert_product_time_s(serving=serving, num_sequences=num_sequences)
        expert = expert_params(serving.shape, moe.expert_ffn) / serving.tp * (layers - moe.num_dense_layers)
        touched = num_experts_touched(num_experts=moe.num_experts, top_k=moe.top_k, num_tokens=num_sequences)
        work, moved = 2.0 * num_sequences * moe.top_k * expert, touched * expert * serving.weight_bytes
        points.append(_decode("experts", "matmul", work, moved, time, calls=num_steps))
    return [op for op in points if op.time_s > 0.0]


def _product(
    serving: Serving, setting: Setting, name: str, size: tuple[FloatLike, FloatLike], *, calls: float,
    kind: Kind = "matmul", phase: Phase = "decode",
) -> Operation:  # fmt: skip
    m, n, k, w = float(setting.num_tokens), float(size[0]), float(size[1]), serving.weight_bytes
    through = product_cache_bytes(num_rows=m, num_columns=n, num_depth=k, width_bytes=w)
    return Operation(
        name=name, phase=phase, kind=kind, flop=2.0 * m * n * k, traffic_bytes=w * (m * k + k * n + m * n),
        fresh_bytes=w * k * n, cache_bytes=through, time_s=_products(serving, setting, {name: (n, k)}),
        num_per_step=calls,
    )  # fmt: skip


def _decode(name: str, kind: Kind, work: float, moved_bytes: float, time_s: float, *, calls: float) -> Operation:
    return Operation(
        name=name, phase="decode", kind=kind, flop=work, traffic_bytes=moved_bytes, fresh_bytes=moved_bytes,
        cache_bytes=moved_bytes,
        time_s=time_s, num_per_step=calls,
    )  # fmt: skip


def serving_memory(serving: Serving, *, num_sequences: int, total_len: int) -> Breakdown:
    """Bytes on one device while `num_sequences` sequences of `total_len` tokens are alive.

    Equation  N w / t + b s C + one layer's activations of a prefill chunk + 4 b V / t + reserve
    Source    kwon2023 (PagedAttention, arXiv:2309.06180), section 3
    Assumes   tables and head split by tensor parallelism and stored as the other weights are
    Checked   tests/costs/test_generation.py: 70B needs 8 A100 of 40 GB, 671B needs 32 of 80 GB
    """
    shape, tp, c = serving.shape, serving.tp, serving.machine.constants
    weights = float(shards_on(serving.setting(num_sequences=1, seq=1), 0).num_params) * serving.weight_bytes
    cached = cache_bytes_per_token(shape=shape, tp=tp, width_bytes=serving.cache_bytes)
    width = serving.recipe.activation_bytes
    working = memory.activation_bytes_per_layer(
        shape=shape, num_tokens=c.prefill_tokens.value, tp=tp, sequence_parallel=False, recompute="none",
        dropout=False, kept=memory.even_bytes(width),
    )  # fmt: skip

    outside = room.device_bytes(machine=serving.machine, reserved_bytes=0.0, num_communicators=float(tp > 1))
    return Breakdown(
        name="serving",
        unit="bytes",
        formula="generation.serving_memory",
        parts=(
            bytes_term("weights", weights, "generation.serving_memory", bytes_per_param=serving.weight_bytes),
            bytes_term("kv_cache", num_sequences * total_len * cached, "generation.cache_bytes_per_token",
                       num_sequences=num_sequences, bytes_per_token=cached),
            bytes_term("activations", float(working), "memory.activation_bytes_per_layer"),
            bytes_term("scores", 4.0 * num_sequences * shape.vocab / tp, "generation.serving_memory"),
            bytes_term("reserve", outside, "room.device_bytes"),
        ),
    )  # fmt: skip


def num_sequences_that_fit(serving: Serving, *, total_len: int, taken_bytes: float = 0.0) -> int:
    """The largest batch of sequences of `total_len` tokens that a copy of the model has room for; 0 when none.

    Equation  floor((u M - taken - fixed) / (s C + 4 V / t))
    Source    kwon2023 (PagedAttention, arXiv:2309.06180), section 3
    Assumes   every sequence at its full length, so no sequence is ever put aside
    Checked   tests/costs/test_generation.py: one more does not fit
    """
    limit = serving.machine.memory_bytes * serving.machine.constants.serving_memory_share.value - taken_bytes
    none = float(serving_memory(serving, num_sequences=0, total_len=total_len).total)
    one = float(serving_memory(serving, num_sequences=1, total_len=total_len).total)
    return max(math.floor((limit - none) / (one - none)), 0)


def num_decode_steps(*, num_sequences: float, num_alive: float, num_mean: float, num_longest: float) -> float:
    """Iterations until the last of a set of sequences ends.

    Equation  n = B L / c + (L_max - L),  c of B sequences alive at once
    Source    yu2022 (Orca), section 3.1: iteration-level scheduling
    Assumes   a finished sequence is replaced at once; the tail is that of the longest
    Checked   tests/costs/test_generation.py: the longest when all run at once
    """
    return num_sequences * num_mean / num_alive + num_longest - num_mean


def generation_interval_s(*, time_s: float, serving: Serving, is_first_token: bool = False) -> tuple[float, float]:
    """The 90 % interval of a predicted time of generation.

    Equation  [q05, q95] x t, each quantile to the power 1 + u/2 for u things that no published rate shares
    Source    published rates, none of them fitted, each source weighing the same (benchmarks/stage_residuals.py)
    Assumes   tomorrow's engine is like one of a source drawn at random from those; first tokens come from one source,
              so their quantiles are widened once more
    Checked   tests/golden/test_generation_table.py: coverage of each source by the others' quantiles
    """
    c = serving.machine.constants
    power = 1.0 + c.unseen_widening.value * len(unseen_generation(serving))
    low, high = c.generation_interval_low.value, c.generation_interval_high.value
    if is_first_token:
        low, high = c.first_token_interval_low.value, c.first_token_interval_high.value
    return time_s * low**power, time_s * high**power


def unseen_generation(serving: Serving) -> list[str]:
    """What about a request lies outside the published rates of generation."""
    c, accelerator, reasons = serving.machine.constants, serving.machine.accelerator.id, []
    if accelerator not in c.generation_seen_accelerators:
        reasons.append(f"no published generation rate used {accelerator}")
    if serving.recipe.name not in c.generation_seen_precisions:
        reasons.append(f"no published generation rate is in {serving.recipe.name}")
    if serving.tp > serving.machine.gpus_per_node:
        reasons.append("no published generation rate splits a model over nodes")
    return reasons


def least_time_s(
    *, serving: Serving, num_active_params: float, num_tokens: float, num_steps: float, num_copies: float
) -> float:
    """What no engine can beat: the arithmetic at peak, or the weights read once per step at the datasheet's rate.

    Equation  max(2 N T / (c t F), n N w / (t B))
    Source    pope2022 (Efficiently Scaling Transformer Inference, arXiv:2211.05102), section 2
    Assumes   peak rates, no attention, no cache, no communication; active parameters of a mixture only
    Checked   tests/planner/test_stages.py: never above the prediction
    """
    machine, t = serving.machine, serving.tp
    arithmetic = (
        2.0 * num_active_params * num_tokens / (num_copies * t * machine.peak_flop_per_s(serving.recipe.matmul))
    )
    speed = machine.accelerator.memory_bandwidth.value
    return max(arithmetic, num_steps * num_active_params * serving.weight_bytes / (t * speed))


def scaled(term: Breakdown, num_times: float) -> Breakdown:
    """The same breakdown, each leaf `num_times` times."""
    value = None if term.value is None else term.value * num_times
    return replace(term, value=value, parts=tuple(scaled(part, num_times) for part in term.parts))
