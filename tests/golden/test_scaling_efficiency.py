"""Scaling efficiency against what Frontier's and EPICURE's authors printed in numbers.

Kind: measured. Efficiency is throughput per device over that of the smallest run, as both define it for language; for
vision it is a batch's time on one node over that on n. Nothing of these runs is in the fit, but the slowdown by other
jobs (`congestion` of a partition) was set by 175B on LUMI (strong) and MareNostrum 5, and on Deucalion between images
and language; where it begins, by the small models, which see none. So those say that one curve meets them all, not that
it was foreseen; Frontier, Leonardo, MeluXina, images and the small models are checks. Tolerance: 8 points, what single
runs on shared machines are good for; the guide says that it could not repeat the large ones.

Not public, hence assumed: EPICURE's split of 175B over 128 devices (tensor parallel within a node, the rest pipeline),
its recomputation, and the software stack of the small model, for which the one is taken that meets its printed rate.
"""

from __future__ import annotations

import itertools
from functools import cache

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.collectives import group_path
from scalewright.costs.machine import machine_from_system
from scalewright.costs.storage import epoch_time_s
from scalewright.planner.answer import Answer, answer
from scalewright.planner.question import Question, VisionModelStep
from scalewright.workload.layout import Layout, Recompute, parse_layout
from scalewright.workload.model import from_catalog
from scalewright.workload.precision import recipe

CATALOG = Catalog((packaged_data(),))
POINTS = 0.08
SMALL_STACK = "eager-unfused"
"""Meets the 88 TFLOP/s that MareNostrum 5 has left of 384 with the small model."""
GCD_PEAK_FLOP_PER_S = 191.5e12
NUM_IMAGES = 1_281_167


@cache
def ran(model: str, system: str, layout: str, stack: str = "megatron-core") -> Answer:
    return answer(
        Question(
            spec=from_catalog(CATALOG.model(model)),
            machine=machine_from_system(CATALOG, system),
            layout=parse_layout(layout),
            recipe=recipe("fp16"),
            stack=CATALOG.stack(stack),
        )
    )


def flop_per_s_per_gpu(run: Answer) -> float:
    return float(run.transformer.model_flop / run.time_s) / int(run.question.layout.num_gpus)


# --- EPICURE, language -----------------------------------------------------------------------------------------------

SPLITS: dict[str, tuple[int, int, Recompute]] = {"lumi": (8, 16, "full"), "marenostrum5": (4, 32, "selective")}
"""Of one copy of 175B: tensor parallel, pipeline, recomputation."""
DEVICES_PER_NODE = {"lumi": 8, "leonardo": 4, "marenostrum5": 4, "meluxina": 4, "karolina": 8, "deucalion": 4}


def large(system: str, copies: int, *, weak: bool) -> Answer:
    tp, pp, recompute = SPLITS[system]
    batch = 192 * copies if weak else 1536
    return ran(
        "epicure-175b", system, f"tp={tp},pp={pp},dp={copies},mbs=1,gbs={batch},zero=1,sp=1,recompute={recompute}"
    )


def small(system: str, nodes: int, *, weak: bool) -> Answer:
    devices = DEVICES_PER_NODE[system] * nodes
    batch = 16 * devices if weak else 512
    return ran("epicure-small", system, f"dp={devices},mbs=1,gbs={batch},zero=1", SMALL_STACK)


@pytest.mark.parametrize(
    ("system", "growth", "weak", "low", "high"),
    [
        ("lumi", 32, True, 0.80, 1.00),  # "above 80 %"
        ("lumi", 32, False, 0.45, 0.45),
        ("marenostrum5", 4, True, 0.75, 0.80),
        ("marenostrum5", 4, False, 0.75, 0.80),
    ],
)
def test_epicure_175b(system: str, growth: int, weak: bool, low: float, high: float) -> None:
    efficiency = flop_per_s_per_gpu(large(system, growth, weak=weak)) / flop_per_s_per_gpu(large(system, 1, weak=weak))
    assert low - POINTS <= efficiency <= high + POINTS


@pytest.mark.parametrize(
    ("system", "nodes", "weak", "low", "high"),
    [
        ("lumi", 32, True, 0.97, 0.97),
        ("lumi", 32, False, 0.83, 0.83),
        ("marenostrum5", 32, True, 0.90, 1.00),
        ("marenostrum5", 32, False, 0.90, 1.00),
        ("deucalion", 4, True, 1.00, 1.00),
        ("deucalion", 4, False, 1.00, 1.00),
    ],
)
def test_epicure_small_model(system: str, nodes: int, weak: bool, low: float, high: float) -> None:
    efficiency = flop_per_s_per_gpu(small(system, nodes, weak=weak)) / flop_per_s_per_gpu(small(system, 1, weak=weak))
    assert low - POINTS <= efficiency <= high + POINTS


def test_marenostrum5_reaches_384_and_the_small_model_a_quarter_of_it() -> None:
    best = max(flop_per_s_per_gpu(large("marenostrum5", n, weak=weak)) for n in (1, 2, 4) for weak in (True, False))
    assert best == pytest.approx(384e12, rel=0.10)
    least = min(flop_per_s_per_gpu(small("marenostrum5", n, weak=weak)) for n in (1, 32) for weak in (True, False))
    assert 1.0 - least / best == pytest.approx(0.77, abs=POINTS)


def test_strong_scaling_falls_faster_and_faster_and_meets_weak_at_1024() -> None:
    """LUMI, 175B: ever more updates per sample, and an emptier pipeline."""

    def efficiency(copies: int, *, weak: bool) -> float:
        return flop_per_s_per_gpu(large("lumi", copies, weak=weak)) / flop_per_s_per_gpu(large("lumi", 1, weak=weak))

    assert efficiency(32, weak=False) < efficiency(32, weak=True) - 0.2
    strong = [efficiency(n, weak=False) for n in (1, 2, 4, 8, 16, 32)]
    falls = [before - after for before, after in itertools.pairwise(strong)]
    assert falls[0] > 0
    assert falls == sorted(falls)
    same = [large("lumi", 8, weak=weak).time_s for weak in (True, False)]
    assert same[0] == same[1]  # 1,024 devices: both have a batch of 1,536


# --- EPICURE, vision -------------------------------------------------------------------------------------------------


IMAGES_PER_GPU = {"meluxina": 128, "karolina": 128, "deucalion": 128}
"""128 for devices of 40 GiB; 256 for those of 64, which the other systems have."""


@cache
def image_batch(system: str, nodes: int, precision: str) -> Answer:
    dp, batch = DEVICES_PER_NODE[system] * nodes, IMAGES_PER_GPU.get(system, 256)
    return answer(
        Question(
            spec=from_catalog(CATALOG.model("resnet-50")),
            machine=machine_from_system(CATALOG, system),
            layout=Layout(dp=dp, mbs=batch, gbs=batch * dp),
            recipe=recipe(precision),
            stack=CATALOG.stack("eager"),
            stage=VisionModelStep(),
        )
    )


def batch_s(system: str, nodes: int, precision: str) -> float:
    return image_batch(system, nodes, precision).time_s


def batch_efficiency(system: str, nodes: int, precision: str) -> float:
    return batch_s(system, 1, precision) / batch_s(system, nodes, precision)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_karolina_degrades_faster_than_other_systems_on_64_nodes(precision: str) -> None:
    """ "Fairly rapidly compared to other systems on which 64 nodes were used"."""
    others = ("lumi", "leonardo", "meluxina", *(("marenostrum5",) if precision == "fp16" else ()))
    assert batch_efficiency("karolina", 64, precision) < min(batch_efficiency(name, 64, precision) for name in others)


@pytest.mark.parametrize("weak", [True, False])
def test_small_model_degrades_faster_on_karolina_than_on_meluxina(weak: bool) -> None:
    """Same devices, and 100 Gbit/s for each of them on both."""
    karolina, meluxina = (
        flop_per_s_per_gpu(small(name, 32, weak=weak)) / flop_per_s_per_gpu(small(name, 1, weak=weak))
        for name in ("karolina", "meluxina")
    )
    assert karolina < meluxina - 0.005


def test_batches_on_karolina_are_steady_and_on_deucalion_and_meluxina_they_are_not() -> None:
    """The guide sees no outliers in Karolina's batches, and a long tail in those of the others."""

    def high_over_time(system: str, nodes: int) -> float:
        run = image_batch(system, nodes, "fp16")
        return run.interval_s[1] / run.time_s

    steady = high_over_time("karolina", 1)
    assert high_over_time("karolina", 64) == pytest.approx(steady)
    assert high_over_time("meluxina", 64) > 1.05 * steady
    assert high_over_time("deucalion", 4) > 1.05 * steady


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_images_on_deucalion_are_near_perfect_on_2_nodes_and_worse_on_4(precision: str) -> None:
    """ "Degrades rapidly with 4 nodes", on a busy machine; the small language model did not."""
    two, four = (batch_efficiency("deucalion", nodes, precision) for nodes in (2, 4))
    assert two > 0.96
    assert four < two - 0.02
    assert "shared network" in " ".join(image_batch("deucalion", 4, precision).warnings)


def test_mixed_precision_scales_worse_than_fp32_on_every_system() -> None:
    for system, nodes in (("lumi", 64), ("leonardo", 64), ("marenostrum5", 64), ("meluxina", 64), ("karolina", 64)):
        assert batch_efficiency(system, nodes, "fp16") < batch_efficiency(system, nodes, "fp32")


def test_marenostrum5_has_a_faster_network_than_lumi_where_both_run_large_jobs() -> None:
    """ "Consistently fast network": exchange of large jobs is slowed down half as much."""
    for nodes in (512, 768, 1024):
        slowdowns = {}
        for name in ("lumi", "leonardo", "marenostrum5"):
            machine = machine_from_system(CATALOG, name)
            devices = nodes * machine.gpus_per_node
            slowdowns[name] = float(group_path(machine, num_ranks=devices, stride=1).slowdown)
        assert slowdowns["marenostrum5"] <= slowdowns["lumi"] / 2


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_marenostrum5_loses_little_per_batch(precision: str) -> None:
    """ "Never below 89 %", up to the 64 nodes of the other pre-exascale systems."""
    efficiencies = [
        batch_s("marenostrum5", 1, precision) / batch_s("marenostrum5", n, precision) for n in (2, 8, 32, 64)
    ]
    assert min(efficiencies) >= 0.89 - POINTS
    assert efficiencies == sorted(efficiencies, reverse=True)


def test_leonardo_is_near_perfect_per_batch_in_fp32() -> None:
    assert batch_s("leonardo", 1, "fp32") / batch_s("leonardo", 64, "fp32") >= 1.0 - POINTS


def test_leonardo_per_epoch_on_64_nodes_follows_from_16() -> None:
    """90 % on 16 nodes gives what an epoch costs whatever the size; with it, 64 nodes must have their 77 %."""

    def efficiency(nodes: int, fixed_s: float) -> float:
        one, many = (
            float(
                epoch_time_s(
                    num_samples=NUM_IMAGES,
                    num_per_batch=4 * 256 * n,
                    step_s=batch_s("leonardo", n, "fp32"),
                    fixed_s=fixed_s,
                )
            )
            for n in (1, nodes)
        )
        return one / (nodes * many)

    low_s, high_s = 0.0, 60.0
    for _ in range(60):
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (middle_s, high_s) if efficiency(16, middle_s) > 0.90 else (low_s, middle_s)
    assert 0.5 < low_s < 30.0
    assert efficiency(64, low_s) == pytest.approx(0.77, abs=POINTS)


# --- Frontier --------------------------------------------------------------------------------------------------------


RECOMPUTED = 8 / 6
"""FLOP that Megatron-DeepSpeed counts where layers are computed again, over those of the model."""


def frontier(
    model: str, tp: int, pp: int, dp: int, batch: int, *, zero: int = 1, stack: str = "megatron-deepspeed-flash"
) -> float:
    layout = f"tp={tp},pp={pp},dp={dp},mbs=1,gbs={batch},zero={zero},recompute=full"
    return flop_per_s_per_gpu(ran(model, "frontier", layout, stack))


@pytest.mark.parametrize(
    ("model", "tp", "pp", "copies", "weak", "strong"),
    [("frontier-175b", 4, 16, (2, 16), 1.00, 0.89), ("frontier-1t", 8, 64, (2, 6), 1.00, 0.87)],
)
def test_frontier_scales(model: str, tp: int, pp: int, copies: tuple[int, int], weak: float, strong: float) -> None:
    """1,024 and 3,072 GCDs. Weak: 320 and 800 samples a copy; strong: 8,000 and 8,016 in all (recalled)."""
    fewer, more = copies
    each, total = (320, 8000) if model == "frontier-175b" else (800, 8016)
    assert frontier(model, tp, pp, more, each * more) / frontier(model, tp, pp, fewer, each * fewer) == pytest.approx(
        weak, abs=POINTS
    )
    assert frontier(model, tp, pp, more, total) / frontier(model, tp, pp, fewer, total) == pytest.approx(
        strong, abs=POINTS
    )


@pytest.mark.parametrize(
    ("model", "tp", "pp", "batch", "zero", "percent", "tolerance"),
    [
        ("frontier-22b", 1, 8, 640, 0, 38.38, 9.0),  # next to no exchange: the device's own rate
        ("frontier-175b", 4, 16, 640, 1, 36.14, 3.0),
        ("frontier-1t", 8, 64, 1600, 1, 31.96, 3.0),
    ],
)
def test_frontier_percent_of_peak(
    model: str, tp: int, pp: int, batch: int, zero: int, percent: float, tolerance: float
) -> None:
    """Inferred: the paper does not say what its FLOP/s count. Logs of its software (Megatron-DeepSpeed) from LUMI count
    what is computed again, 8 in place of 6 FLOP a parameter."""
    peak_frac = frontier(model, tp, pp, 2, batch, zero=zero) / GCD_PEAK_FLOP_PER_S
    assert 100 * peak_frac * RECOMPUTED == pytest.approx(percent, abs=tolerance)


def test_more_tensor_parallelism_is_slower_and_most_so_across_nodes() -> None:
    rates = [frontier("frontier-22b", tp, 8, 16 // tp, 640) for tp in (1, 2, 4, 8, 16)]
    assert rates == sorted(rates, reverse=True)
    losses = [1.0 - after / before for before, after in itertools.pairwise(rates)]
    assert losses[-1] == max(losses)


def test_full_pipelines_are_faster_and_stages_per_micro_batch_decide() -> None:
    filled = [frontier("frontier-175b", 4, 16, 2, 2 * m) for m in (16, 32, 128, 512)]
    assert filled == sorted(filled)
    assert filled[0] < 0.65 * filled[-1]
    kept = [frontier("frontier-175b", 4, pp, 2, 2 * 8 * pp) for pp in (8, 16, 32)]
    emptied = [frontier("frontier-175b", 4, pp, 2, 2 * 64) for pp in (8, 16, 32)]
    assert emptied == sorted(emptied, reverse=True)
    assert emptied[0] / emptied[-1] > 1.2
    assert max(kept) / min(kept) < 1.10  # four times the nodes, and the head weighs on stages of three layers
    assert max(kept) / min(kept) - 1.0 < 0.4 * (emptied[0] / emptied[-1] - 1.0)


def test_fused_attention_gains_what_the_paper_saw() -> None:
    """Up to 30 % in the paper (recalled), more with longer sequences."""
    fused, unfused = (
        frontier("frontier-22b", 1, 8, 2, 640, stack=name) for name in ("megatron-deepspeed-flash", "eager-unfused")
    )
    gain = fused / unfused
    assert 1.05 < gain < 1.40
