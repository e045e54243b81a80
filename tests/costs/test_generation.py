"""Generation by part: the cache, the experts a batch touches, sums between devices, prompts, and what fits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs import generation
from scalewright.costs.generation import Serving
from scalewright.costs.machine import Machine, machine_from_hardware, machine_from_system
from scalewright.costs.machine.generation_rates import GenerationRates
from scalewright.workload.model import ModelSpec, from_catalog, from_shape
from scalewright.workload.precision import RECIPES

CATALOG = Catalog((packaged_data(),))
OPT_13B = from_shape("layers=40,hidden=5120,heads=40,vocab=50272,seq=2048")
MODELS = ("llama3-8b", "llama3-70b", "mixtral-8x7b", "deepseek-v3")
MEASURED = [
    row
    for line in (Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "h200_decode_power.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
    if (row := json.loads(line))["kind"] == "decode_layer"
]


def model(name: str) -> ModelSpec:
    return from_catalog(CATALOG.model(name))


def node(gpu: str = "h100-sxm") -> Machine:
    return machine_from_hardware(
        CATALOG, gpu=gpu, gpus_per_node=8, scale_up_bytes_per_s=None, network_bytes_per_s_per_gpu=50e9
    )


def serving(
    name: str = "llama3-8b", *, machine: Machine | None = None, precision: str = "bf16", tp: int = 1
) -> Serving:
    return Serving(
        shape=model(name).transformer, machine=machine or node(), stack=CATALOG.stack("megatron-core"),
        recipe=RECIPES[precision], tp=tp, cache_bytes=2.0, weight_bytes=generation.STORED_BYTES[precision],
    )  # fmt: skip


def step_s(given_: Serving, *, num_sequences: float = 64.0, num_context: float = 2048.0) -> float:
    return float(generation.decode_step(given_, num_sequences=num_sequences, num_context=num_context).total)


@pytest.mark.parametrize(("size", "measured_us"), [(65536, 28.95), (262144, 44.66), (524288, 52.42), (1048576, 71.42)])
def test_sums_over_two_nodes_take_what_nccl_tests_print(size: int, measured_us: float) -> None:
    """tests/golden/nccl_tests_h100.toml, 8 H100 on two nodes of MareNostrum 5. On 2026-11-16: +11, -11, -4, 0 %."""
    machine = machine_from_system(CATALOG, "marenostrum5")
    copy = replace(serving("llama3-70b", tp=8), machine=machine)
    predicted_s = generation.tensor_sum_time_s(size_bytes=float(size), serving=copy)
    assert predicted_s == pytest.approx(measured_us * 1e-6, rel=0.15)


def test_cache_of_opt_13b_is_the_papers() -> None:
    # arXiv:2309.06180, section 3: 2 x 5120 x 40 x 2 bytes = 800 KB, binary.
    size = generation.cache_bytes_per_token(shape=OPT_13B.transformer, tp=1, width_bytes=2.0)
    assert size == 800 * 1024


def test_cache_of_latent_attention_is_the_reports() -> None:
    # DeepSeek-V3: 61 layers of 512 + 64 elements; about 70 KB a token, on every tensor-parallel rank.
    shape = model("deepseek-v3").transformer
    sizes = {generation.cache_bytes_per_token(shape=shape, tp=tp, width_bytes=2.0) for tp in (1, 8, 32)}
    assert sizes == {70_272}


def test_grouped_heads_shrink_the_cache_and_stop_splitting() -> None:
    shape = model("llama3-70b").transformer
    by_tp = [generation.cache_bytes_per_token(shape=shape, tp=tp, width_bytes=2.0) for tp in (1, 8, 16)]
    assert by_tp == [327_680, 40_960, 40_960]


def test_experts_touched_by_one_token_and_by_many() -> None:
    assert generation.num_experts_touched(num_experts=8, top_k=2, num_tokens=1) == pytest.approx(2)
    assert generation.num_experts_touched(num_experts=128, top_k=8, num_tokens=1000) == pytest.approx(128)
    # two tokens of Mixtral: 2 + 2 less the chance of meeting, 8 (1 - (3/4)^2)
    assert generation.num_experts_touched(num_experts=8, top_k=2, num_tokens=2) == pytest.approx(3.5)


def test_a_small_batch_reads_its_experts_only() -> None:
    given_ = serving("mixtral-8x7b")
    one = generation.expert_product_time_s(serving=given_, num_tokens=1)
    many = generation.expert_product_time_s(serving=given_, num_tokens=64)
    assert many / one == pytest.approx(4.0, rel=0.05)  # arithmetic begins to count at 64
    assert generation.expert_product_time_s(serving=serving("llama3-8b"), num_tokens=64) == 0.0


# SGLang pull request 2904, vLLM's kernel on H100: bytes, then seconds for 2, 4 and 8 devices.
SUMS = [
    (512, (9.5e-6, 9.1e-6, 10.1e-6)),
    (32_768, (8.7e-6, 9.2e-6, 11.8e-6)),
    (262_144, (12.9e-6, 20.6e-6, 24.1e-6)),
    (524_288, (17.7e-6, 26.9e-6, 30.4e-6)),
    (1_048_576, (26.6e-6, 40.2e-6, 45.0e-6)),
]


@pytest.mark.parametrize(("size", "measured"), SUMS)
def test_sums_of_a_decode_step_take_what_the_table_says(size: int, measured: tuple[float, ...]) -> None:
    """Measured, without CUDA graphs. Two numbers cannot follow the kernel's change of algorithm at 256 KiB: 30 %."""
    for tp, seconds in zip((2, 4, 8), measured, strict=True):
        predicted_s = generation.tensor_sum_time_s(size_bytes=size, serving=serving("llama3-70b", tp=tp))
        assert predicted_s == pytest.approx(seconds, rel=0.30)


def test_one_device_sums_nothing() -> None:
    assert generation.tensor_sum_time_s(size_bytes=1e6, serving=serving(tp=1)) == 0.0


def test_sums_across_nodes_take_longer() -> None:
    inside, outside = (serving("llama3-70b", tp=tp) for tp in (8, 16))
    near, far = (generation.tensor_sum_time_s(size_bytes=1e6, serving=s) for s in (inside, outside))
    assert far > near


@pytest.mark.parametrize("row", MEASURED, ids=lambda r: f"{r['shape']} b{r['batch']}")
def test_layer_takes_what_an_h200_took(row: dict[str, float | str]) -> None:
    """Measured: batches 1 to 512. One floor stands for 32 to 69 us of kernel starts, hence 25 % on small layers."""
    name, _, split = str(row["shape"]).partition(" tp=")
    given_ = serving(name, machine=node("h200-sxm"), tp=int(split or 1))
    products = generation.weight_product_time_s(serving=given_, num_tokens=float(row["batch"])) / given_.shape.layers
    predicted_s = products + given_.machine.constants.decode_layer_time.value
    assert predicted_s == pytest.approx(float(row["time_s"]), rel=0.25)


@settings(deadline=None)
@given(name=st.sampled_from(MODELS), batch=st.floats(1, 256), context=st.floats(1, 32768), faster=st.floats(1.0, 4.0))
def test_more_memory_bandwidth_is_never_slower(name: str, batch: float, context: float, faster: float) -> None:
    given_ = serving(name, tp=8)
    quick = replace(given_, machine=replace(given_.machine, hbm_bytes_per_s=faster * given_.machine.hbm_bytes_per_s))
    load = {"num_sequences": batch, "num_context": context}
    assert step_s(quick, **load) <= step_s(given_, **load)


@settings(deadline=None)
@given(name=st.sampled_from(MODELS), batch=st.integers(1, 256), context=st.floats(1, 32768), times=st.integers(1, 8))
def test_attention_to_the_cache_is_linear_in_batch_and_context(
    name: str, batch: int, context: float, times: int
) -> None:
    given_ = serving(name, tp=8)

    def seconds(num_sequences: float, num_context: float) -> float:
        return generation.cached_attention_time_s(serving=given_, num_sequences=num_sequences, num_context=num_context)

    once = seconds(batch, context)
    assert seconds(times * batch, context) == pytest.approx(times * once)
    assert seconds(batch, times * context) == pytest.approx(times * once)


@settings(deadline=None)
@given(name=st.sampled_from(MODELS), batch=st.integers(1, 256), more=st.integers(0, 256))
def test_a_larger_batch_takes_longer_but_less_each(name: str, batch: int, more: int) -> None:
    """Rows of a tile are paid whole, so a row more may cost a tile more: 10 % are allowed for that."""
    given_ = serving(name, tp=8)
    small, large = step_s(given_, num_sequences=batch), step_s(given_, num_sequences=batch + more)
    assert large >= small * 0.999
    assert large / (batch + more) <= 1.1 * small / batch


def test_weights_bind_a_single_sequence() -> None:
    """8.0e9 parameters less the embedding, 2 bytes each, over the reachable bandwidth: the floor under a token."""
    given_ = serving("llama3-8b")
    shape = given_.shape
    read = 2.0 * (model("llama3-8b").num_params - shape.vocab * shape.hidden)
    bound = read / given_.machine.hbm_bytes_per_s
    assert bound <= step_s(given_, num_sequences=1, num_context=128) <= 1.8 * bound


def test_prompts_cost_twice_the_parameters_each_token() -> None:
    given_ = serving("llama3-70b", tp=4)
    products = generation.prefill(given_, num_sequences=8, prompt_len=1024).part("weights")
    shape = given_.shape
    work = 2.0 * (model("llama3-70b").num_params - 2 * shape.vocab * shape.hidden) * 8 * 1024
    assert float(products.total) == pytest.approx(work / 4 / given_.matmul_flop_per_s("bf16"), rel=0.05)


@settings(deadline=None)
@given(num=st.integers(1, 64))
def test_prompts_are_linear_once_chunks_are_full(num: int) -> None:
    given_ = serving("llama3-8b")
    full = float(generation.prefill(given_, num_sequences=8, prompt_len=1024).total)
    assert float(generation.prefill(given_, num_sequences=8 * num, prompt_len=1024).total) == pytest.approx(num * full)


@settings(deadline=None)
@given(name=st.sampled_from(MODELS), total=st.integers(16, 65536))
def test_the_largest_batch_fits_and_one_more_does_not(name: str, total: int) -> None:
    given_ = serving(name, machine=node("h200-sxm"), tp=16 if name == "deepseek-v3" else 8)
    limit = given_.machine.memory_bytes * given_.machine.constants.serving_memory_share.value
    most = generation.num_sequences_that_fit(given_, total_len=total)

    def used(num: int) -> float:
        return float(generation.serving_memory(given_, num_sequences=num, total_len=total).total)

    assert most >= 1
    assert used(most) <= limit * (1 + 1e-12)
    assert used(most + 1) > limit * (1 - 1e-12)


@pytest.mark.parametrize(
    ("name", "partition", "tp", "fits"),
    [
        ("llama3-70b", "gpu-40", 4, False),
        ("llama3-70b", "gpu-40", 8, True),
        ("deepseek-v3", "gpu-80", 16, False),
        ("deepseek-v3", "gpu-80", 32, True),
    ],
)
def test_hpc_r1s_smallest_generators(name: str, partition: str, tp: int, fits: bool) -> None:
    """HPC-R1 on Perlmutter: 70B needs 8 GPUs (of 40 GB), the 671B teacher 32 (of 80 GB); 16-bit weights."""
    machine = machine_from_system(CATALOG, "perlmutter", partition_name=partition)
    room = generation.num_sequences_that_fit(serving(name, machine=machine, tp=tp), total_len=1536)
    assert (room >= 1) is fits


def weights_of(given_: Serving) -> float:
    return float(generation.serving_memory(given_, num_sequences=1, total_len=128).part("weights").total)


def test_eight_bit_weights_halve_the_memory_but_for_the_tables_and_the_traffic() -> None:
    wide, narrow = (serving("llama3-70b", precision=p, tp=4) for p in ("bf16", "fp8"))
    tables = 2.0 * 2 * wide.shape.vocab * wide.shape.hidden / 4
    assert weights_of(wide) - tables == pytest.approx(2 * (weights_of(narrow) - tables))
    times = [generation.weight_product_time_s(serving=s, num_tokens=1) for s in (wide, narrow)]
    assert 1.7 <= times[0] / times[1] <= 2.05


@pytest.mark.parametrize(
    ("weights", "width_bytes", "products"),
    [("int4", 0.515625, "bf16"), ("nvfp4", 0.5625, "bf16"), ("mxfp4", 0.53125, "bf16"), ("fp8", 1.0, "fp8")],
)
def test_four_bit_weights_are_widened_where_the_device_has_no_units(
    weights: str, width_bytes: float, products: str
) -> None:
    """Hopper multiplies 8 bit and no fewer; Blackwell has 4-bit units. Scales are part of the width."""
    given_ = replace(serving("llama3-70b", tp=4), weights=weights, weight_bytes=generation.stored_bytes(weights))
    assert given_.weight_bytes == width_bytes
    assert given_.products == products
    blackwell = replace(given_, machine=node("b200-sxm"))
    assert blackwell.products == ("fp4" if weights in ("nvfp4", "mxfp4") else products)
    assert step_s(given_, num_sequences=1) < step_s(serving("llama3-70b", tp=4), num_sequences=1)


def test_experts_spread_over_copies_exchange_tokens_and_take_less_memory() -> None:
    alone = serving("mixtral-8x7b", machine=node("h200-sxm"))
    spread = replace(alone, ep=8)
    assert weights_of(spread) < 0.25 * weights_of(alone)
    assert generation.expert_exchange_time_s(serving=alone, num_tokens=64.0) == 0.0
    assert generation.expert_exchange_time_s(serving=spread, num_tokens=64.0) > 0.0
    inside = replace(serving("mixtral-8x7b", tp=8), ep=8)
    assert generation.expert_exchange_time_s(serving=inside, num_tokens=64.0) == 0.0


def test_a_pipeline_splits_weights_and_cache() -> None:
    one, four = serving("llama3-70b", tp=2), replace(serving("llama3-70b", tp=2), pp=4)
    assert weights_of(four) == pytest.approx(weights_of(one) / 4, rel=0.1)
    caches = [
        float(generation.serving_memory(s, num_sequences=64, total_len=2048).part("kv_cache").total)
        for s in (one, four)
    ]
    assert caches[0] == 4 * caches[1]
    assert generation.pipeline_send_time_s(serving=one, num_tokens=64.0) == 0.0
    assert generation.pipeline_send_time_s(serving=four, num_tokens=64.0) > 0.0


def test_measured_rates_take_the_place_of_fitted_ones() -> None:
    """What a calibration finds of decode steps: the formulas do not ask where a value comes from."""
    given_ = serving("llama3-8b")
    slow = GenerationRates(
        matmul_flop_per_s={"bf16": 1e12}, weight_bytes_per_s=1e10, cache_bytes_per_s=1e10, layer_s=0.0,
        prompt_layer_s=0.0, step_s=0.0, sequence_s=0.0, blend=8.0,
    )  # fmt: skip
    measured = replace(given_, machine=replace(given_.machine, generation=slow))
    read = 2.0 * model("llama3-8b").num_params / 1e10
    assert step_s(measured, num_sequences=1, num_context=1) == pytest.approx(read, rel=0.08)


def test_the_corner_of_the_roofline_is_round_and_its_ends_are_straight() -> None:
    def both(arithmetic_s: float, traffic_s: float) -> float:
        return float(generation.roofline_time_s(arithmetic_s=arithmetic_s, traffic_s=traffic_s, blend=1.5))

    assert both(1.0, 1e-4) == pytest.approx(1.0, rel=1e-3)
    assert both(1e-4, 1.0) == pytest.approx(1.0, rel=1e-3)
    assert both(1.0, 1.0) == pytest.approx(2 ** (1 / 1.5))


def test_kernels_without_groups_read_the_cache_once_a_query_head() -> None:
    """TensorRT-LLM until 0.6.1 had none, until 0.9 one for groups of eight, then for all."""
    engine = CATALOG.engine("tensorrt-llm")
    times = {}
    for name in ("llama3-8b", "llama3-70b"):  # groups of 4 and 8
        for release in ("0.6.1", "0.9", "0.17", ""):
            own = replace(serving(name), engine=engine.model_copy(update={"release": release}))
            times[name, release] = float(
                generation.cached_attention_time_s(serving=own, num_sequences=64.0, num_context=2048.0)
            )
    assert times["llama3-8b", "0.6.1"] == times["llama3-8b", "0.9"] > 1.5 * times["llama3-8b", "0.17"]
    assert times["llama3-70b", "0.6.1"] > 2.5 * times["llama3-70b", "0.9"]
    assert times["llama3-70b", "0.9"] == times["llama3-70b", "0.17"] == times["llama3-70b", ""]


def test_parallel_blocks_sum_once_a_layer() -> None:
    two, one = (
        generation.decode_step(replace(serving(tp=4), has_parallel_blocks=parallel), num_sequences=8, num_context=512)
        for parallel in (False, True)
    )
    assert float(two.part("tensor_parallel").total) == pytest.approx(2.0 * float(one.part("tensor_parallel").total))
