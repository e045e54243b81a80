"""Shipped studies in predict mode: every efficiency that their authors print in numbers, within 8 points.

Kind: measured. The figures stand in the study files with their sources; the tolerance is that of the guide's own
repeatability on shared machines (see test_scaling_efficiency.py).
"""

from __future__ import annotations

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.study.file import load, shipped
from scalewright.study.points import open_study
from scalewright.study.results import predict_study

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
