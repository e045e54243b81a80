"""Pages of every shipped study, and of a GRPO run: nothing runs off, and the answer comes first."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("selenium")
from tests.browser.conftest import WIDE_PX, resize
from tests.browser.test_study_charts import CROSSED

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.records.hybrid import HybridSettings
from scalewright.records.hybrid_report import HybridShown
from scalewright.records.reasoning import CurvePoint
from scalewright.records.study_report import StudyReport
from scalewright.report.hybrid.page import write_run_page
from scalewright.report.study.page import write_page
from scalewright.study.file import load, shipped
from scalewright.study.points import open_study
from scalewright.study.report_builder import predicted_report

pytestmark = pytest.mark.browser
CATALOG = Catalog((packaged_data(),))
PHONE_PX = 420
HERE_ONLY = ("engines", "quick")
"""Studies whose points are on the machine at hand: they are predicted where it is calibrated."""


@pytest.fixture(scope="module", params=[name for name in shipped() if name not in HERE_ONLY])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyReport]:
    path = tmp_path_factory.mktemp("page") / "index.html"
    report = predicted_report(CATALOG, open_study(CATALOG, request.param))
    write_page(path, report)
    return path, report


@pytest.mark.parametrize("width", [PHONE_PX, WIDE_PX])
def test_nothing_runs_off_and_no_letter_is_crossed(browser, made: tuple[Path, StudyReport], width: int) -> None:
    resize(browser, width)
    browser.get(made[0].as_uri())
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script(CROSSED) == []


def test_the_question_is_answered_first(browser, made: tuple[Path, StudyReport]) -> None:
    """What the study is asked stands before how far the model is off."""
    path, report = made
    file = load(shipped()[report.study])
    browser.get(path.as_uri())
    if not any(row.predicted for row in report.points):
        assert f"scalewright study run {report.study}" in report.findings[0].text
        hidden = "return document.querySelector('.plots').closest('section').hidden"
        assert browser.execute_script(hidden)
        return
    first = browser.execute_script("return document.querySelector('article li').textContent")
    assert report.findings[0].is_answer
    assert first.startswith(report.findings[0].text)
    assert file.answers
    assert first.partition("{")[0].startswith(file.answers[0].text.partition("{")[0])


def test_a_run_of_reinforcement_learning_shows_what_it_learned(browser, tmp_path: Path) -> None:
    curve = [
        CurvePoint(
            step=step,
            reward_mean=0.1 * step,
            correct_frac=0.1 * step,
            length_mean=20.0 - step,
            entropy=1.0 / (1 + step),
            kl_reference=0.01 * step,
            loss=-1e-9 * step,
            accuracy_frac=0.5 + 0.1 * step if step % 2 else None,
        )
        for step in range(5)
    ]
    shown = HybridShown(settings=HybridSettings(mode="co-located"), total_s=1.0)
    title = "grpo of layers=3,hidden=96,heads=4,kv_heads=4,head_dim=24"
    write_run_page(tmp_path / "run.html", shown, title=title, version="0", summary=[], curve=curve)
    for width in (PHONE_PX, WIDE_PX):
        resize(browser, width)
        browser.get((tmp_path / "run.html").as_uri())
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    titles = browser.execute_script(
        "return [...document.querySelectorAll('.learning figcaption')].map(f => f.textContent)"
    )
    assert titles == [
        "Reward",
        "Right answers while sampling",
        "Greedy accuracy on the test set",
        "Tokens of an answer",
        "Entropy (nats)",
        "KL to the reference",
    ]
    counts = browser.execute_script(
        "return [...document.querySelectorAll('.learning svg')].map(s => s.querySelectorAll('circle').length)"
    )
    assert counts == [5, 5, 2, 5, 5, 5]
    assert "loss (0)" in browser.execute_script("return document.querySelector('.learning .muted').textContent")
