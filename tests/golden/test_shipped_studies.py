"""Shipped studies in predict mode: every efficiency that their authors print in numbers, within 8 points.

Kind: measured. The figures stand in the study files with their sources; the tolerance is that of the guide's own
repeatability on shared machines (see test_scaling_efficiency.py).
"""

from __future__ import annotations

from functools import cache

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.study.file import load, shipped
from scalewright.study.points import Study, open_study
from scalewright.study.report_builder import report_of
from scalewright.study.results import Results, predict_study
from scalewright.study.statements import checked_statements
from scalewright.workload.model import from_catalog

CATALOG = Catalog((packaged_data(),))
POINTS = 0.08


@cache
def opened(name: str) -> Study:
    """Expanding a study takes seconds; it cannot be changed, so all tests share it."""
    return open_study(CATALOG, name)


@cache
def results_of(name: str) -> Results:
    return predict_study(CATALOG, opened(name))


@pytest.mark.parametrize("name", [name for name, path in shipped().items() if load(path).published])
def test_published_efficiencies(name: str) -> None:
    results = results_of(name)
    for published in results.published:
        if not published.figure.metric.endswith("efficiency_frac"):
            continue
        predicted = results.predicted[published.point].numbers[published.figure.metric].value
        figure = published.figure
        low = figure.low if figure.low is not None else (figure.value if figure.high is None else 0.0)
        high = figure.high if figure.high is not None else (figure.value if figure.low is None else 1.0)
        assert low is not None
        assert high is not None
        assert low - POINTS <= predicted <= high + POINTS, results.study.points[published.point].labels


@pytest.mark.parametrize("name", shipped())
def test_every_figure_meets_a_point(name: str) -> None:
    study = opened(name)
    lonely = [figure.where for figure in study.file.published if not study.matching(figure.where)]
    assert not lonely
    assert not [remark.where for remark in study.file.remarks if not study.matching(remark.where)]
    sides = [side for told in study.file.statements for side in (told.lower, told.higher)]
    assert not [side for side in sides if not study.matching(side)]


def test_saving_is_predicted_for_every_storage() -> None:
    results = results_of("storage")
    assert len(results.predicted) == len(results.study.points)
    assert all(outcome.numbers for outcome in results.predicted if not outcome.problem)
    assert not all(outcome.problem for outcome in results.predicted)


BATCH_OF_THE_GUIDE = {
    "lumi": 256, "leonardo": 256, "marenostrum5": 256,  # 64 GB
    "meluxina": 128, "karolina": 128, "vega": 128, "deucalion": 128,  # 40 GB
    "discoverer": 512, "jupiter": 512,  # more than 80 GB: the guide has no figure, 512 is assumed
}  # fmt: skip


@pytest.mark.parametrize(("system", "batch"), BATCH_OF_THE_GUIDE.items())
def test_vision_has_the_guides_batch_per_gpu(system: str, batch: int) -> None:
    """EPICURE guide 1.0, section 5.2: 128 for devices of 40 GB, 256 for 64 GB and 512 for 80 GB."""
    study = opened("epicure-vision")
    mine = [study.combinations[index] for index in study.matching({"system": system})]
    assert {cell.values["batch"] for cell in mine} == {batch}
    assert all(f"mbs={batch}," in str(cell.options["layout"]) for cell in mine)


def test_the_best_rate_of_marenostrum5_is_under_strong_scaling_on_few_nodes() -> None:
    """EPICURE guide 1.0, section 5.3: up to 384 TFLOP/s; rates are higher with strong scaling on few nodes."""
    study = opened("epicure-language")
    (figure,) = (f for f in study.file.published if f.metric == "flop_per_s_per_gpu" and f.value == 384e12)
    (index,) = study.matching(figure.where)
    values = study.combinations[index].values
    assert (values["system"], values["scaling"], values["growth"]) == ("marenostrum5", "strong", 1)
    results = results_of("epicure-language")
    mine = study.matching({"system": "marenostrum5", "size": "175b"})
    rates = {i: results.predicted[i].numbers["flop_per_s_per_gpu"].value for i in mine}
    assert max(rates, key=rates.__getitem__) == index
    assert rates[index] == pytest.approx(384e12, rel=0.10)


@pytest.mark.parametrize("name", ["epicure-vision", "epicure-language"])
def test_contradictions_with_the_guide_are_in_the_notes(name: str) -> None:
    """Each statement of the guide is met, or a note of the report names it with the predicted figures."""
    results = results_of(name)
    report = report_of(results)
    checks = checked_statements(results)
    assert len(checks) == len(results.study.file.statements) >= 6
    for check in checks:
        assert (check.verdict == "agrees") != (check.sentence(results) in report.notes)


def test_the_inferred_shape_of_the_small_model_is_stated() -> None:
    notes = " ".join(opened("epicure-language").file.notes)
    spec = from_catalog(CATALOG.model("epicure-small"))
    assert spec.num_params == pytest.approx(355e6, rel=0.02)
    for words in ("Inferred", "857 million", "356 million", "24 layers"):
        assert words in notes


PERLMUTTER = ("perlmutter-40", "perlmutter-80")


def fewest(results: Results, stage: str, mode: str = "full", model: str = "llama3-70b") -> dict[str, float]:
    """Fewest devices of a stage on Perlmutter, by the memory of a device."""
    study = results.study
    mine = study.matching({"system": PERLMUTTER, "stage": stage, "mode": mode, "model": model})
    return {study.points[i].labels["system"]: results.predicted[i].numbers["num_gpus"].value for i in mine}


def test_fewest_gpus_are_printed_for_both_kinds_of_perlmutters_nodes() -> None:
    """HPC-R1 prints one minimum a stage and no memory: one of the two kinds of nodes has it."""
    results = results_of("hpc-r1")
    cases = {
        4: fewest(results, "sft", "lora"),
        64: fewest(results, "rl"),
        8: fewest(results, "generation"),
        32: fewest(results, "teacher", model="deepseek-v3"),
        1: fewest(results, "student", model="llama3.2-3b"),
    }
    for published, ours in cases.items():
        assert set(ours) == set(PERLMUTTER)
        assert published in ours.values()
        assert ours["perlmutter-40"] >= ours["perlmutter-80"]
    shown = {
        row.labels["system"]
        for row in report_of(results).points
        if any(figure.metric == "num_gpus" for figure in row.published)
    }
    assert shown == set(PERLMUTTER)
    assert {cell.values["gpu_memory_gb"] for cell in results.study.combinations} == {40.0, 64.0, 80.0, 96.0}


def test_utilisation_of_generation_stands_beside_hpc_r1s() -> None:
    """44 % on average, where 8 GPUs are the fewest. How it was measured is not public, so the tolerance is wide."""
    results = results_of("hpc-r1")
    (index,) = results.study.matching({"system": "perlmutter-40", "stage": "generation"})
    assert results.predicted[index].numbers["utilisation_frac"].value == pytest.approx(0.44, abs=0.10)
    assert results.published_of(index, "utilisation_frac")[0].figure.value == 0.44


def test_frontier_prints_shares_of_peak_and_the_work_of_the_whole_training() -> None:
    """Dash et al. 2023, abstract: 1T parameters on 20T tokens need 120 million exaFLOP; 38.38, 36.14 and 31.96 %."""
    results = results_of("frontier-tuning")
    figures = {(p.figure.metric, p.figure.value): p.point for p in results.published}
    work = results.predicted[figures["training_flop", 1.2e26]].numbers["training_flop"].value
    assert work == pytest.approx(120e6 * 1e18, rel=0.05)
    for share in (0.3838, 0.3614, 0.3196):
        predicted = results.predicted[figures["hfu_frac", share]].numbers
        assert predicted["hfu_frac"].value == pytest.approx(predicted["mfu_frac"].value * 8 / 6, rel=0.02)
