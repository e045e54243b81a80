"""What an epoch of the vision benchmark is predicted to take: training, validation, and their efficiencies."""

from __future__ import annotations

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.study.file import load, shipped
from scalewright.study.kinds.base import Outcome
from scalewright.study.kinds.training import predict_point
from scalewright.study.points import open_study
from scalewright.study.results import Results, predict_study

CATALOG = Catalog((packaged_data(),))
NUM_TRAINED, NUM_SCORED = 1_281_167, 50_000


def predicted(*, dp: int = 8, **options: str | float | bool) -> dict[str, float]:
    layout = f"dp={dp},mbs=64,gbs={64 * dp}"
    point = {"model": "resnet-50", "system": "leonardo", "precision": "fp16", "layout": layout, **options}
    outcome = predict_point(CATALOG, point, where="test")
    return {name: number.value for name, number in outcome.numbers.items()}


def validation_s(**options: str | float | bool) -> float:
    numbers = predicted(**options)  # type: ignore[arg-type]
    return numbers["epoch_time_s"] - numbers["training_time_s"]


def test_an_epoch_is_its_training_and_its_validation() -> None:
    numbers = predicted(epoch_fixed_s=2.0, validation_fixed_s=0.5)
    assert numbers["training_time_s"] == pytest.approx(numbers["batch_time_s"] * NUM_TRAINED / 512 + 1.5)
    assert predicted(validates=False)["epoch_time_s"] == predicted(validates=False)["training_time_s"]
    assert validation_s(epoch_fixed_s=2.0, validation_fixed_s=0.5) == pytest.approx(validation_s() + 0.5)


def test_scoring_an_image_costs_under_half_of_training_on_it() -> None:
    """A forward pass alone: a third of the arithmetic, and no exchange."""
    a_trained_image_s = predicted()["training_time_s"] / NUM_TRAINED
    assert 0.2 < validation_s() / NUM_SCORED / a_trained_image_s < 0.5


def test_twice_the_devices_score_in_half_the_time() -> None:
    assert validation_s(dp=16) == pytest.approx(validation_s(dp=8) / 2)


@pytest.fixture(scope="module")
def results() -> Results:
    return predict_study(CATALOG, open_study(CATALOG, "epicure-vision"))


def usable(results: Results) -> list[Outcome]:
    return [outcome for outcome in results.predicted if not outcome.problem]


def test_an_epoch_never_scales_better_than_its_training_nor_training_than_its_batches(results: Results) -> None:
    for outcome in usable(results):
        whole, training, batch = (
            outcome.numbers[name].value
            for name in ("epoch_efficiency_frac", "training_efficiency_frac", "efficiency_frac")
        )
        assert whole <= training + 1e-9 <= batch + 2e-9


STUDIES = {name: load(path) for name, path in shipped().items()}
OF_ANY_MACHINE = [name for name, one in STUDIES.items() if one.metrics and one.point.get("system") != "here"]
"""A study of this machine is predicted where it is calibrated."""


@pytest.mark.parametrize("name", OF_ANY_MACHINE)
def test_every_metric_that_a_study_declares_is_predicted_or_measured(name: str) -> None:
    """A column without a number promises what nobody computes. `place` orders the points of a search that ran."""
    study = open_study(CATALOG, name)
    outcomes = predict_study(CATALOG, study).predicted
    measured_only = {"process_memory_bytes", "place", "cold_samples_per_s", "warm_samples_per_s", "bytes_per_s"}
    has = {metric for outcome in outcomes for metric in outcome.numbers}
    assert set(study.metrics) - measured_only <= has
