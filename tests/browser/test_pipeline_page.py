"""The page of a pipeline as a browser shows it: stages, charts, curves over each other, hostile texts, a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.browser.conftest import NARROW_PX, OVERFLOWING, WIDE_PX, requested, resize
from tests.conftest import Cli
from tests.pipeline_cases import STUDY, record, write_finished

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.records.documents import document, write_document
from scalewright.study.pipeline.opening import open_measured
from scalewright.study.store import Store

pytestmark = pytest.mark.browser
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
RIGHT = {"sft": 185, "grpo": 240, "grpo-unmasked": 120, "samples": 240}
MACHINE = {"peak_flop_per_s": 2e11, "memory_bytes_per_s": 2e10, "accelerator": "cpu", "basis": "a test"}


@pytest.fixture(scope="module")
def page(shared_cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four stages that have ended, one with texts that are no words, and one that waits."""
    folder = tmp_path_factory.mktemp("pipeline")
    (folder / "mine.toml").write_text(STUDY)
    study, results = open_measured(Catalog((packaged_data(),)), str(folder / "mine.toml"), folder / "results")
    store, pipeline = Store.create_or_resume(results, study), study.pipeline
    assert pipeline is not None
    for run, combination in zip(pipeline.runs, study.combinations, strict=True):
        if run.name in RIGHT:
            stage = record(str(combination.options["stage"]), RIGHT[run.name], energy_j=5e3)
            directory = write_finished(
                store.run_of(run.point, 0).path, stage, prompt=HOSTILE, why=HOSTILE, falls=run.name == "grpo-unmasked"
            )
            write_document(directory.machine, document("machine", MACHINE))
    done = shared_cli("study", "report", "mine.toml", "--results", "results", "--no-plots", cwd=folder)
    assert done.returncode == 0, done.stderr
    return results / "report" / "index.html"


def opened(browser, path: Path, width: int = WIDE_PX) -> None:
    resize(browser, width)
    requested(browser)
    browser.get_log("browser")
    browser.get(path.as_uri())


def test_every_chart_is_drawn_and_nothing_is_loaded(browser, page: Path) -> None:
    opened(browser, page)
    assert set(requested(browser)) == {page.as_uri()}
    assert browser.get_log("browser") == []
    charts = browser.execute_script(
        "return [...document.querySelectorAll('.stage-plots svg')].map(s => s.getAttribute('aria-label'))"
    )
    assert [name.removeprefix("Chart of ").split(" ")[0] for name in charts] == [
        "Greedy", "Time", "Energy", "Roofline:",
    ]  # fmt: skip
    heads = browser.execute_script("return [...document.querySelectorAll('.stages thead th')].map(t => t.textContent)")
    assert heads == ["", "sft", "grpo", "grpo-unmasked", "samples", "student"]
    bars = browser.execute_script(
        "return document.querySelectorAll('.stage-plots svg[aria-label^=\"Chart of Time\"] rect').length"
    )
    assert bars == 4 + 7 + 7 + 4


def test_curves_with_and_without_the_mask_share_a_chart(browser, page: Path) -> None:
    opened(browser, page)
    titles = browser.execute_script("return [...document.querySelectorAll('.curve-group h4')].map(t => t.textContent)")
    assert titles[:2] == ["sft", "grpo, grpo-unmasked (grpo, from sft)"]
    labels = browser.execute_script(
        "const paths = document.querySelectorAll('.curve-group svg[aria-label=\"Chart of Reward\"] path');"
        "return [...paths].map(p => p.getAttribute('aria-label'))"
    )
    assert labels == [
        "grpo: reward, from 0.3 to 0.544 in 40 steps",
        "grpo-unmasked: reward, from 0.3 to 0.04 in 40 steps",
    ]


def test_answers_can_be_read_and_their_texts_do_nothing(browser, page: Path) -> None:
    opened(browser, page)
    assert browser.title == "A small pipeline"
    prompts = browser.execute_script("return [...document.querySelectorAll('.answer .prompt')].map(p => p.textContent)")
    assert len(prompts) == 4 * 12
    assert set(prompts) == {HOSTILE}
    assert browser.execute_script("return document.images.length") == 0


@pytest.mark.parametrize("width", [NARROW_PX, WIDE_PX])
def test_nothing_reaches_beyond_the_window(browser, page: Path, width: int) -> None:
    opened(browser, page, width)
    assert browser.execute_script(OVERFLOWING) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
