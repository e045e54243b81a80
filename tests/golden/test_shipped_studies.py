"""Shipped studies in predict mode: every efficiency that their authors print in numbers, within 8 points.

Kind: measured. The figures stand in the study files with their sources; the tolerance is that of the guide's own
repeatability on shared machines (see test_scaling_efficiency.py).
"""

from __future__ import annotations

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.study.file import load, shipped
from scalewright.study.points import open_study
from scalewright.study.report_builder import report_of
from scalewright.study.results import predict_study
from scalewright.study.statements import checked_statements
from scalewright.workload.model import from_catalog

CATALOG = Catalog((packaged_data(),))
POINTS = 0.08


@pytest.mark.parametrize("name", [name for name, path in shipped().items() if load(path).published])
def test_published_efficiencies(name: str) -> None:
    results = predict_study(CATALOG, open_study(CATALOG, name))
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
    study = open_study(CATALOG, name)
    lonely = [figure.where for figure in study.file.published if not study.matching(figure.where)]
    assert not lonely
    assert not [remark.where for remark in study.file.remarks if not study.matching(remark.where)]
    sides = [side for told in study.file.statements for side in (told.lower, told.higher)]
    assert not [side for side in sides if not study.matching(side)]


BATCH_OF_THE_GUIDE = {
    "lumi": 256, "leonardo": 256, "marenostrum5": 256,  # 64 GB
    "meluxina": 128, "karolina": 128, "vega": 128, "deucalion": 128,  # 40 GB
    "discoverer": 512, "jupiter": 512,  # more than 80 GB: the guide has no figure, 512 is assumed
}  # fmt: skip


@pytest.mark.parametrize(("system", "batch"), BATCH_OF_THE_GUIDE.items())
def test_vision_has_the_guides_batch_per_gpu(system: str, batch: int) -> None:
    """EPICURE guide 1.0, section 5.2: 128 for devices of 40 GB, 256 for 64 GB and 512 for 80 GB."""
    study = open_study(CATALOG, "epicure-vision")
    mine = [study.combinations[index] for index in study.matching({"system": system})]
    assert {cell.values["batch"] for cell in mine} == {batch}
    assert all(f"mbs={batch}," in str(cell.options["layout"]) for cell in mine)


def test_the_best_rate_of_marenostrum5_is_under_strong_scaling_on_few_nodes() -> None:
    """EPICURE guide 1.0, section 5.3: up to 384 TFLOP/s; rates are higher with strong scaling on few nodes."""
    study = open_study(CATALOG, "epicure-language")
    (figure,) = (f for f in study.file.published if f.metric == "flop_per_s_per_gpu" and f.value == 384e12)
    (index,) = study.matching(figure.where)
    values = study.combinations[index].values
    assert (values["system"], values["scaling"], values["growth"]) == ("marenostrum5", "strong", 1)
    results = predict_study(CATALOG, study)
    mine = study.matching({"system": "marenostrum5", "size": "175b"})
    rates = {i: results.predicted[i].numbers["flop_per_s_per_gpu"].value for i in mine}
    assert max(rates, key=rates.__getitem__) == index
    assert rates[index] == pytest.approx(384e12, rel=0.10)


@pytest.mark.parametrize("name", ["epicure-vision", "epicure-language"])
def test_contradictions_with_the_guide_are_in_the_notes(name: str) -> None:
    """Each statement of the guide is met, or a note of the report names it with the predicted figures."""
    results = predict_study(CATALOG, open_study(CATALOG, name))
    report = report_of(results)
    checks = checked_statements(results)
    assert len(checks) == len(results.study.file.statements) >= 6
    for check in checks:
        assert check.holds != (check.sentence in report.notes)


def test_the_inferred_shape_of_the_small_model_is_stated() -> None:
    notes = " ".join(open_study(CATALOG, "epicure-language").file.notes)
    spec = from_catalog(CATALOG.model("epicure-small"))
    assert spec.num_params == pytest.approx(355e6, rel=0.02)
    for words in ("Inferred", "857 million", "355 million", "24 layers"):
        assert words in notes
