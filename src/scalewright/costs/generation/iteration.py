"""One iteration of a serving engine: running sequences get a token each, and prompts are read beside them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scalewright.catalog.types import Precision, TransformerShape
from scalewright.costs import attention, collectives, compute, selection
from scalewright.costs.breakdown import Breakdown, FloatLike, seconds_term
from scalewright.costs.generation.serving import Serving
from scalewright.workload.model import expert_params

LayerGemms = tuple[float, compute.Gemms]
"""Share of the layers, and the products that they have."""


def cache_bytes_per_token(*, shape: TransformerShape, tp: int, width_bytes: float) -> float:
    """Keys and values one device keeps for one token, all layers.

    Equation  2 l max(k/t, 1) d w;  latent attention: l (c + r) w, on every rank
    Source    kwon2023 (PagedAttention, arXiv:2309.06180), section 3; deepseek2024 (arXiv:2405.04434), section 2.1.2
    Assumes   heads are repeated where there are fewer than devices; every layer attends to the whole context
    Checked   tests/costs/test_generation.py: OPT-13B 800 KB, DeepSeek-V3 70,272 bytes
    """
    if shape.mla is not None:
        return shape.layers * float(shape.mla.kv_lora_rank + shape.mla.qk_rope_head_dim) * width_bytes
    return 2.0 * shape.layers * max(shape.kv_heads / tp, 1.0) * shape.head_dim * width_bytes


def num_experts_touched(*, num_experts: int, top_k: int, num_tokens: FloatLike) -> FloatLike:
    """Different experts that a batch needs in one layer.

    Equation  E (1 - (1 - k/E)^T)
    Source    the expected number of occupied cells, T draws of k among E
    Assumes   tokens choose independently and evenly; real routers are less even and touch fewer
    Checked   tests/costs/test_generation.py: k for one token, all for many
    """
    missed = (1.0 - top_k / num_experts) ** np.asarray(num_tokens, dtype=np.float64)
    return (num_experts * (1.0 - missed))[()]


def tensor_sum_time_s(*, size_bytes: FloatLike, serving: Serving) -> FloatLike:
    """One all-reduce of activations inside an iteration.

    Equation  inside a node    min(a0 + 2 (q-1)/q S/B + 2 (q-1) l, a + 2 (q-1)/q S/B_direct)
              over m nodes     min(ring or tree by NCCL, the direct one of a node's q + 4 l log2 m
                               + 2 (m-1)/m S/(q B_net));  B times a share where only the host joins the devices
    Source    vLLM pull request 2192 and SGLang pull request 2904: custom all-reduce kernels; nccl2019 for trees
    Assumes   engines on every maker's devices with links of their own have such kernels, as fast as on H100; no stalls
              of training, since an engine's ranks are in step: latencies are those of a quiet link
    Checked   tests/costs/test_generation.py: the 512 byte to 1 MiB table of 2, 4 and 8 H100; tests/golden/
              nccl_tests_h100.toml: 8 H100 on two nodes, 64 KiB to 1 MiB
    """
    machine, n, c = serving.machine, serving.tp, serving.machine.constants
    if n == 1:
        return 0.0 * np.asarray(size_bytes)[()]
    path = collectives.group_path(machine, num_ranks=n, stride=1)
    q, m = min(n, machine.gpus_per_node), float(path.num_nodes)
    moved = 2.0 * (q - 1) / q * size_bytes
    if machine.accelerator.scale_up_link is None and machine.accelerator.kind != "cpu" and m == 1.0:
        return path.offset_s + moved / (machine.scale_up_bytes_per_s * c.host_sum_share.value)
    direct = c.direct_reduce_offset.value + moved / c.direct_reduce_bandwidth.value
    if m > 1.0:
        latency = 4.0 * float(path.between_latency_s) / c.latency_factor.value * float(np.log2(m))
        direct = direct + latency + 2.0 * (m - 1.0) / m * size_bytes / (q * float(path.network_bytes_per_s))
        return np.minimum(collectives.all_reduce_time_s(size_bytes=size_bytes, path=path), direct)
    if path.measured:
        return collectives.all_reduce_time_s(size_bytes=size_bytes, path=path)
    ring = path.offset_s + moved / machine.scale_up_bytes_per_s + 2.0 * (q - 1.0) * machine.scale_up_latency_s
    return np.minimum(ring, direct)


def roofline_time_s(*, arithmetic_s: FloatLike, traffic_s: FloatLike, blend: float) -> FloatLike:
    """A product whose arithmetic and traffic overlap, not perfectly.

    Equation  t = (a^p + m^p)^(1/p)
    Source    williams2009 (Roofline, CACM 52(4)), its corner rounded; p measured on an H200
    Assumes   one exponent for every shape: tiles start by loading and end by storing
    Checked   tests/costs/test_generation.py: the larger one far from the corner
    """
    a, m = np.asarray(arithmetic_s, dtype=np.float64), np.asarray(traffic_s, dtype=np.float64)
    large = np.maximum(np.maximum(a, m), 1e-30)
    return (large * ((a / large) ** blend + (m / large) ** blend) ** (1.0 / blend))[()]


def product_time_s(
    *, serving: Serving, num_tokens: FloatLike, gemms: compute.Gemms, precision: Precision, width_bytes: float
) -> FloatLike:
    """Products of some tokens with weights that cross memory once.

    Equation  sum over products of (2 m n k / F, w k n / B) on a rounded roofline, m the tokens
    Source    pope2022 (Efficiently Scaling Transformer Inference, arXiv:2211.05102), section 2
    Assumes   with few rows libraries split the depth, so waves of tiles do not bind (seen on an H200)
    Checked   tests/costs/test_generation.py: layers of Llama 3 on an H200, batches of 1 to 512
    """
    rates, rate = serving.rates, serving.matmul_flop_per_s(precision)
    total: FloatLike = 0.0
    for n, k in gemms.values():
        size = float(n) * float(k)
        total = total + roofline_time_s(
            arithmetic_s=2.0 * num_tokens * size / rate,
            traffic_s=width_bytes * size / rates.weight_rate_bytes_per_s(num_tokens, width_bytes=width_bytes),
            blend=rates.blend,
        )  # fmt: skip
    return total


def weight_product_time_s(*, serving: Serving, num_tokens: FloatLike) -> FloatLike:
    """Dense products in all layers: attention projections, feed-forwards, shared experts.

    Equation  l x (projections + feed-forward)
    Source    pope2022 (Efficiently Scaling Transformer Inference, arXiv:2211.05102), section 2
    Assumes   every weight crosses memory once an iteration
    Checked   tests/costs/test_generation.py: layers of Llama 3 on an H200, batches of 1 to 512
    """
    return serving.shape.layers * sum(
        share * product_time_s(
            serving=serving, num_tokens=num_tokens, gemms=gemms, precision=serving.products,
            width_bytes=serving.weight_bytes,
        )
        for share, gemms in layer_gemms(serving)
    )  # fmt: skip


def layer_gemms(serving: Serving) -> list[LayerGemms]:
    """Products of an average layer, and the share of the layers that have them."""
    setting = serving.setting(num_sequences=1, seq=1)
    moe, frac = serving.shape.moe, setting.moe_frac
    groups: list[LayerGemms] = [(1.0, compute.attention_gemms(setting))]
    if frac < 1.0:
        groups.append((1.0 - frac, compute.ffn_gemms(setting, serving.shape.ffn_hidden)))
    if moe is not None and moe.num_shared:
        width = moe.num_shared * float(moe.shared_ffn or moe.expert_ffn)
        groups.append((frac, compute.ffn_gemms(setting, width)))
    return groups


def expert_product_time_s(*, serving: Serving, num_tokens: FloatLike) -> FloatLike:
    """Routed experts of one iteration in all layers.

    Equation  (touched x expert w / (t B), 2 T k expert i / (t g F)) on a rounded roofline per layer of experts; i the
              busiest device's tokens over the mean
    Source    gale2022 (MegaBlocks, arXiv:2211.15841), section 5, on a roofline
    Assumes   experts split over the tensor-parallel group, or spread whole over the expert-parallel one; touched
              experts cross memory once
    Checked   tests/costs/test_generation.py: one token reads k experts, a large batch all of them
    """
    shape, c, moe = serving.shape, serving.machine.constants, serving.shape.moe
    if moe is None:
        return 0.0 * np.asarray(num_tokens)[()]
    layers = shape.layers - min(moe.num_dense_layers, shape.layers)
    tokens = np.asarray(num_tokens, dtype=np.float64) * serving.num_expert_copies
    devices = max(serving.tp, serving.ep)
    share = expert_params(shape, moe.expert_ffn) / devices
    touched = num_experts_touched(num_experts=moe.num_experts, top_k=moe.top_k, num_tokens=tokens)
    load: FloatLike = 1.0
    if serving.ep > 1:
        chance = selection.expected_largest(float(serving.ep)) / np.sqrt(
            np.maximum(tokens * moe.top_k / serving.ep, 1.0)
        )
        load = 1.0 + c.expert_imbalance.value + chance
    rate = serving.matmul_flop_per_s(serving.products) * c.serving_expert_share.value
    arithmetic = 2.0 * tokens * moe.top_k * share * load / rate
    traffic = touched * share * serving.weight_bytes / serving.rates.weight_bytes_per_s
    return layers * roofline_time_s(arithmetic_s=arithmetic, traffic_s=traffic, blend=serving.rates.blend)


def expert_exchange_time_s(*, serving: Serving, num_tokens: FloatLike) -> FloatLike:
    """Tokens on their way to experts on other copies' devices and back, all layers.

    Equation  2 l all-to-all of T k h w bytes;  0 where a copy's own devices hold all experts
    Source    rajbhandari2022 (DeepSpeed-MoE, arXiv:2201.05596), section 5
    Assumes   nothing hides the exchange; within a copy the sums already bring tokens to every device
    Checked   tests/costs/test_generation.py: nothing without expert parallelism across copies
    """
    shape, moe = serving.shape, serving.shape.moe
    if moe is None or serving.ep <= serving.tp:
        return 0.0 * np.asarray(num_tokens)[()]
    layers = shape.layers - min(moe.num_dense_layers, shape.layers)
    size = num_tokens * moe.top_k / serving.tp * shape.hidden * serving.recipe.activation_bytes
    once = collectives.all_to_all_time_s(size_bytes=size, machine=serving.machine, num_ranks=serving.ep)
    return 2.0 * layers * once


def cached_attention_time_s(*, serving: Serving, num_sequences: FloatLike, num_context: FloatLike) -> FloatLike:
    """Attention of one new token of each sequence to its cache, all layers.

    Equation  max(b s C / B + repeated reads, b s l 4 a d / (t F));  latent attention, absorbed: 2 a (2 c + r) for 4 a d
    Source    pope2022 (Efficiently Scaling Transformer Inference, arXiv:2211.05102), section 3.3
    Assumes   the cache crosses memory once at the engine's rate, the sequences' shares spread over the device
    Checked   tests/costs/test_generation.py: linear in batch and context
    """
    shape, t = serving.shape, serving.tp
    tokens = np.asarray(num_sequences, dtype=np.float64) * num_context
    cached = cache_bytes_per_token(shape=shape, tp=t, width_bytes=serving.cache_bytes)
    per_token = 4.0 * shape.heads * shape.head_dim
    if shape.mla is not None:
        per_token = 2.0 * shape.heads * (2.0 * shape.mla.kv_lora_rank + shape.mla.qk_rope_head_dim)
    rate = serving.matmul_flop_per_s(serving.recipe.attention)
    traffic = tokens * cached / serving.rates.cache_rate_bytes_per_s(width_bytes=serving.cache_bytes)
    again = repeated_read_time_s(serving=serving, cached_bytes=tokens * cached)
    return np.maximum(traffic + again, tokens * shape.layers * per_token / t / rate)[()]


def repeated_read_time_s(*, serving: Serving, cached_bytes: FloatLike) -> FloatLike:
    """Further reads of the cache where query heads that share a cached head are served one by one.

    Equation  (r - 1) b s C / B2,  r query heads of a cached head, B2 the rate of the L2 cache; 0 with shared reads
    Source    the engine's entry, which says for which groups a release had kernels
    Assumes   heads of a group run at about the same time, so that all but the first hit the L2 cache; nothing where its
              rate is not known
    Checked   tests/costs/test_generation.py: as much as the group is large; published rates of TensorRT-LLM 0.6 and 0.9
    """
    l2, engine, shape = serving.machine.accelerator.l2_bandwidth, serving.engine, serving.shape
    if engine is None or l2 is None or shape.mla is not None:
        return 0.0 * np.asarray(cached_bytes)[()]
    return (engine.num_cache_reads(shape.heads // shape.kv_heads) - 1.0) * cached_bytes / l2.value


def prompt_attention_time_s(*, serving: Serving, num_tokens: FloatLike, prompt_len: float) -> FloatLike:
    """Attention of prompts to themselves, all layers.

    Equation  T / (n s) x the fused attention of n prompts of s tokens, as many as one pass reads
    Source    dao2023 (FlashAttention-2, arXiv:2307.08691), section 4.1
    Assumes   prompts read in pieces attend as fast as whole ones
    Checked   tests/costs/test_generation.py: linear in prompts, square in their length
    """
    seq = max(round(prompt_len), 1)
    num_prompts = max(round(serving.machine.constants.prefill_tokens.value / seq), 1)
    once = float(attention.attention_times(serving.setting(num_sequences=num_prompts, seq=seq)).forward_s) / num_prompts
    return serving.shape.layers * once * num_tokens / seq


def activation_time_s(*, serving: Serving, num_tokens: FloatLike) -> FloatLike:
    """Norms, residuals, rotation, activation function and casts, all layers.

    Equation  l T w c (h + f/t) / B,  c crossings of memory
    Source    ivanov2021 (Data Movement Is All You Need, arXiv:2007.00072), Table A.1
    Assumes   engines fuse all but c crossings; one number for every engine
    Checked   tests/costs/test_generation.py: linear in tokens
    """
    setting, c = serving.setting(num_sequences=1, seq=1), serving.machine.constants
    width = serving.shape.hidden + setting.feed_forward_width / serving.tp
    size = num_tokens * serving.recipe.activation_bytes * c.serving_passes.value * width
    return serving.shape.layers * size / serving.machine.hbm_bytes_per_s


def head_time_s(*, serving: Serving, num_sequences: FloatLike) -> FloatLike:
    """The output layer for the tokens that are sampled.

    Equation  the product [b, V/t, h] on a rounded roofline
    Source    pope2022 (Efficiently Scaling Transformer Inference, arXiv:2211.05102), section 2
    Assumes   the head stays in 16 bit; sampling itself is host work
    Checked   tests/costs/test_generation.py: linear in vocabulary for large batches
    """
    gemms = {"head": (serving.shape.vocab / serving.tp, float(serving.shape.hidden))}
    return product_time_s(
        serving=serving, num_tokens=num_sequences, gemms=gemms, precision=serving.recipe.attention,
        width_bytes=serving.table_bytes,
    )  # fmt: skip


def iteration(
    serving: Serving, *, num_sequences: FloatLike, num_context: FloatLike, num_prompt_tokens: FloatLike = 0.0,
    prompt_len: float = 1.0,
) -> Breakdown:  # fmt: skip
    """Seconds of one iteration that gives every running sequence a token and reads some prompt tokens.

    Equation  t = products + experts + attention to the cache and of prompts + activations + head + 2 l sums
                  + l floor + engine;  l sums where attention and feed-forward are added up together; with a pipeline,
                  of one p-th of the tokens, in p places at once
    Source    pope2022 (Efficiently Scaling Transformer Inference, arXiv:2211.05102), section 2; yu2022 (Orca)
    Assumes   kernels follow one another; sums over tensor parallelism are not hidden; a pipeline is always full
    Checked   tests/golden/test_generation_table.py: published tokens/s
    """
    shape, rates, p = serving.shape, serving.rates, serving.pp
    running, prompts = (np.asarray(n, dtype=np.float64) / p for n in (num_sequences, num_prompt_tokens))
    tokens, reads = running + prompts, np.asarray(prompts > 0.0, dtype=np.float64)
    size = tokens * shape.hidden * serving.recipe.activation_bytes
    sums = (
        (1.0 if serving.has_parallel_blocks else 2.0)
        * shape.layers
        * tensor_sum_time_s(size_bytes=size, serving=serving)
    )
    sampled = running + prompts / max(prompt_len, 1.0)
    floor = shape.layers * ((1.0 - reads) * rates.layer_s + reads * rates.prompt_layer_s)
    engine = rates.step_s + rates.sequence_s * running * p
    parts = [
        seconds_term("weights", weight_product_time_s(serving=serving, num_tokens=tokens),
                     "generation.weight_product_time_s", num_tokens=tokens[()]),
        seconds_term("experts", expert_product_time_s(serving=serving, num_tokens=tokens),
                     "generation.expert_product_time_s"),
        seconds_term("cache", cached_attention_time_s(serving=serving, num_sequences=running, num_context=num_context),
                     "generation.cached_attention_time_s", num_context=num_context),
        seconds_term("prompt_attention",
                     prompt_attention_time_s(serving=serving, num_tokens=prompts, prompt_len=prompt_len),
                     "generation.prompt_attention_time_s", prompt_len=prompt_len),
        seconds_term("activations", activation_time_s(serving=serving, num_tokens=tokens),
                     "generation.activation_time_s"),
        seconds_term("head", head_time_s(serving=serving, num_sequences=sampled), "generation.head_time_s",
                     vocab=shape.vocab),
        seconds_term("tensor_parallel", sums, "generation.tensor_sum_time_s", tp=serving.tp, size_bytes=size[()]),
        seconds_term("expert_exchange", expert_exchange_time_s(serving=serving, num_tokens=tokens),
                     "generation.expert_exchange_time_s", ep=serving.ep),
        seconds_term("pipeline", pipeline_send_time_s(serving=serving, num_tokens=tokens),
                     "generation.pipeline_send_time_s", pp=p),
        seconds_term("kernels", floor, "generation.iteration"),
        seconds_term("engine", engine, "generation.iteration"),
    ]  # fmt: skip
    return Breakdown(name="iteration", unit="s", formula="generation.iteration", parts=tuple(parts))


def pipeline_send_time_s(*, serving: Serving, num_tokens: FloatLike) -> FloatLike:
    """Activations handed from each pipeline rank to the next.

    Equation  (p - 1) (a0 + alpha + T h w / B)
    Source    hockney1994 (The communication challenge for MPP, Parallel Computing 20)
    Assumes   nothing hides the messages
    Checked   tests/costs/test_generation.py: nothing without a pipeline
    """
    if serving.pp == 1:
        return 0.0 * np.asarray(num_tokens)[()]
    path = collectives.group_path(serving.machine, num_ranks=serving.pp, stride=serving.tp)
    size = num_tokens * serving.shape.hidden * serving.recipe.activation_bytes
    return (serving.pp - 1.0) * collectives.send_time_s(size_bytes=size, path=path)


def decode_step(serving: Serving, *, num_sequences: FloatLike, num_context: FloatLike) -> Breakdown:
    """Seconds of one iteration that only decodes."""
    return iteration(serving, num_sequences=num_sequences, num_context=num_context)


def prefill(serving: Serving, *, num_sequences: float, prompt_len: float) -> Breakdown:
    """Seconds to read a batch of prompts while nothing decodes.

    Equation  max(b s / T, 1) iterations that share the prompts; in a pipeline each passes all ranks in turn
    Source    pope2022 (Efficiently Scaling Transformer Inference, arXiv:2211.05102), section 2; kwon2023
    Assumes   prompts are put together up to the engine's limit; no prefix is cached before
    Checked   tests/costs/test_generation.py: linear in prompts; near 2 N tokens over the engine's rate
    """
    tokens = num_sequences * prompt_len
    num_chunks = max(tokens / serving.num_prefill_tokens, 1.0)
    once = iteration(
        serving, num_sequences=0.0, num_context=0.0, num_prompt_tokens=tokens / num_chunks * serving.pp,
        prompt_len=prompt_len,
    )  # fmt: skip
    rounds = (num_chunks + serving.pp - 1.0) / serving.pp
    return replace(scaled(once, rounds), name="prefill", formula="generation.prefill")


def scaled(term: Breakdown, num_times: float) -> Breakdown:
    """The same breakdown, each leaf `num_times` times."""
    value = None if term.value is None else term.value * num_times
    return replace(term, value=value, parts=tuple(scaled(part, num_times) for part in term.parts))
