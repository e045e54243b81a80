"""Published runs, predicted from what they say of themselves and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.catalog.library import Catalog, open_catalog, packaged_data
from scalewright.catalog.published import PublishedRun, load_runs, packaged_runs
from scalewright.planner.validation.validate import validate_run

CATALOG = Catalog((packaged_data(),))
RUNS = load_runs(packaged_runs())
# Korthikanti et al. 2022, Table 5: the 22B model on one node with full recomputation.
ROW: dict[str, Any] = {
    "id": "one",
    "source": "a paper",
    "model": {
        "name": "gpt-22b",
        "layers": 48,
        "hidden": 6144,
        "heads": 64,
        "ffn_hidden": 24576,
        "vocab": 51200,
        "seq": 2048,
    },
    "hardware": {
        "gpu": "A100-80GB-SXM",
        "gpus": 8,
        "gpus_per_node": 8,
        "intra_bw_GBps": 300,
        "inter_bw_GBps_per_gpu": 25,
    },
    "layout": {
        "dp": 1,
        "tp": 8,
        "pp": 1,
        "vpp": 1,
        "sp": False,
        "micro_batch": 4,
        "global_batch": 4,
        "recompute": "full",
    },
    "dtype": "fp16",
    "measured": {"step_time_s": 1.42},
}


def changed(**sections: dict[str, Any] | Any) -> PublishedRun:
    row = copy.deepcopy(ROW)
    for section, change in sections.items():
        row[section] = row[section] | change if isinstance(change, dict) else change
    return PublishedRun.model_validate(row)


def answer(run: PublishedRun) -> dict[str, Any]:
    row = validate_run(CATALOG, run).as_dict()
    del row["id"]
    return row


def test_row_is_predicted_beside_its_measurement() -> None:
    row = validate_run(CATALOG, changed())
    assert row.reason is None
    assert row.measured_step_s == 1.42
    assert row.predicted_step_s == pytest.approx(1.42, rel=0.5)
    assert row.interval_s is not None
    assert row.interval_s[0] < row.predicted_step_s < row.interval_s[1]
    assert row.fits


@given(index=st.integers(0, len(RUNS) - 1), source=st.text(max_size=20), run_id=st.text(max_size=20))
@settings(deadline=None, max_examples=80)
def test_prediction_never_looks_at_source_or_id(index: int, source: str, run_id: str) -> None:
    renamed = RUNS[index].model_copy(update={"source": source, "id": run_id})
    assert answer(renamed) == answer(RUNS[index])


@given(index=st.integers(0, len(RUNS) - 1), factor=st.floats(0.1, 10.0))
@settings(deadline=None, max_examples=60)
def test_prediction_never_looks_at_the_measured_time(index: int, factor: float) -> None:
    run = RUNS[index]
    time = (run.measured.step_time_s or 1.0) * factor
    other = run.model_copy(update={"measured": run.measured.model_copy(update={"step_time_s": time})})
    ours, theirs = answer(run), answer(other)
    for row in (ours, theirs):
        row.pop("measured_step_s", None)
    assert ours == theirs


def test_prediction_does_not_depend_on_the_models_name() -> None:
    assert answer(changed(model={"name": "something-else"})) == answer(changed())


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model": {"layers": None}}, "layers"),
        ({"model": {"hidden": None}}, "hidden"),
        ({"model": {"heads": None}}, "heads"),
        ({"model": {"ffn_hidden": None}}, "ffn_hidden"),
        ({"model": {"vocab": None}}, "vocab"),
        ({"model": {"moe": {"experts": 8}}}, "experts"),
        ({"model": {"moe": {"experts": 8, "top_k": 2}}}, "experts"),
        ({"model": {"moe": {"top_k": 2, "expert_ffn": 14336}}}, "experts"),
        ({"model": {"heads": 7}}, "7 heads"),
        ({"hardware": {"gpus": None}}, "gpus"),
        ({"hardware": {"gpus": 16}}, "16 GPUs"),
        ({"hardware": {"gpu": "a101-sxm"}}, "a101-sxm"),
        ({"layout": {"dp": None}}, "dp"),
        ({"layout": {"tp": None}}, "tp"),
        ({"layout": {"pp": None}}, "pp"),
        ({"layout": {"global_batch": None}}, "global_batch"),
        ({"layout": {"global_batch": 6}}, "batch 6"),
        ({"layout": {"cp": 2}}, "dp x tp x pp x cp = 16"),
        ({"layout": {"tp": 1, "pp": 64}, "hardware": {"gpus": 64}}, "48 layers"),
        ({"dtype": "int3"}, "int3"),
        ({"dtype": "fp8"}, "fp8"),
        (
            {
                "hardware": {"gpu": "A40", "gpus": 16, "inter_bw_GBps_per_gpu": None},
                "layout": {"dp": 2, "global_batch": 8},
            },
            "network",
        ),
    ],
    ids=str,
)
def test_row_that_cannot_be_predicted_gives_the_reason(change: dict[str, Any], word: str) -> None:
    row = validate_run(CATALOG, changed(**change))
    assert row.predicted_step_s is None
    assert word in str(row.reason)
    assert set(row.as_dict()) == {"id", "reason"}


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"moe": {"experts": 8, "top_k": 2, "expert_ffn": 24576}}, "layout": {"ep": 8}},
        {"model": {"moe": {"experts": 8, "top_k": 2, "expert_ffn": 3072, "shared": 1, "dense_layers": 3}}},
        {"model": {"mla": True}},
        {"layout": {"cp": 2, "tp": 4}},
        {"layout": {"recompute": "selective-op"}},
    ],
    ids=str,
)
def test_experts_latent_attention_and_context_parallelism_are_predicted(change: dict[str, Any]) -> None:
    row, plain = validate_run(CATALOG, changed(**change)), validate_run(CATALOG, changed())
    assert row.reason is None
    assert row.predicted_step_s is not None
    assert row.predicted_step_s > 0
    assert row.predicted_step_s != plain.predicted_step_s
    assert row.predicted_memory_bytes != plain.predicted_memory_bytes


def test_interleaving_is_assumed_up_to_eight_chunks_where_the_row_does_not_say() -> None:
    deep = {"tp": 1, "pp": 8, "vpp": None, "micro_batch": 1, "global_batch": 16}
    row = validate_run(CATALOG, changed(layout=deep))
    # 48 layers over 8 stages are 6 a stage: six chunks of one layer, for 16 micro-batches divide by 8.
    assert "vpp=6" in row.assumed
    uneven = validate_run(CATALOG, changed(layout=deep | {"global_batch": 12}))
    assert "vpp=1" in uneven.assumed


def test_what_the_row_leaves_open_is_listed_as_assumed() -> None:
    row = validate_run(CATALOG, changed(layout={"micro_batch": None, "vpp": None, "sp": None, "recompute": "unstated"}))
    assert row.reason is None
    text = " ".join(row.assumed)
    for word in ("micro-batch 1", "vpp=1", "sequence parallel", "recompute"):
        assert word in text


def test_nothing_is_assumed_where_the_row_says_it_all() -> None:
    assert validate_run(CATALOG, changed()).assumed == ()


def test_measured_time_follows_from_a_published_rate() -> None:
    # 4 sequences of 2048 tokens over 8 GPUs at 1024 tokens/s each take one second.
    row = validate_run(CATALOG, changed(measured={"step_time_s": None, "tokens_per_s_per_gpu": 1024.0}))
    assert row.measured_step_s == pytest.approx(1.0)


def test_run_that_failed_for_memory_has_no_time() -> None:
    row = validate_run(CATALOG, changed(measured={"oom": True}))
    assert row.measured_step_s is None
    assert row.fits is not None


def test_half_of_peak_is_the_rule_of_thumb() -> None:
    row = validate_run(CATALOG, changed())
    # 96 B s l h^2 (1 + s/6h + V/16lh) over 8 x 312 TFLOP/s x 0.5: Narayanan et al. 2021 with full recomputation.
    s, h, n, v = 2048, 6144, 48, 51200
    work = 96 * 4 * s * n * h**2 * (1 + s / (6 * h) + v / (16 * n * h))
    assert row.rule_step_s == pytest.approx(work / (8 * 312e12 * 0.5), rel=1e-6)


def test_row_without_a_network_takes_that_of_generic_nodes_and_says_so() -> None:
    run = next(r for r in load_runs(packaged_runs()) if r.hardware.gpu == "H100-80GB-SXM" and r.hardware.gpus == 512)
    bare = run.model_copy(update={"hardware": run.hardware.model_copy(update={"inter_bw_gb_per_s_per_gpu": None})})
    row = validate_run(open_catalog(), bare)
    assert row.predicted_step_s is not None
    assert "network of generic-h100" in row.assumed


def test_no_more_layers_are_recomputed_than_memory_asks_for() -> None:
    """GPT-22B on 8 GPUs: a large micro-batch fits only with some layers recomputed, and takes a time in between."""
    big = {"recompute": "unstated", "sp": True, "micro_batch": 16, "global_batch": 16}
    row = validate_run(CATALOG, changed(layout=big))
    selective, full = (
        validate_run(CATALOG, changed(layout=big | {"recompute": mode})) for mode in ("selective", "full")
    )
    assert not selective.fits
    assert full.fits
    assert row.fits
    assert row.predicted_step_s is not None
    assert selective.predicted_step_s is not None
    assert full.predicted_step_s is not None
    assert selective.predicted_step_s < row.predicted_step_s < full.predicted_step_s
    assert "of the layers" in row.assumed[-1]


def test_batch_below_data_parallelism_is_read_as_longer_splits_of_sequences() -> None:
    wide = {"tp": 1, "pp": 1, "dp": 8, "micro_batch": 1, "global_batch": 4}
    assert validate_run(CATALOG, changed(layout=wide)).reason is not None
    row = validate_run(CATALOG, changed(layout=wide | {"dp_as_printed": 2}))
    assert row.reason is None
    assert "dp=2 as printed and cp=4" in row.assumed[0]
