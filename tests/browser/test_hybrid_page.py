"""The page of a run with rollouts as a browser shows it, alone and inside a pipeline's page, also on a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.browser.conftest import NARROW_PX, OVERFLOWING, WIDE_PX, requested, resize
from tests.conftest import Cli
from tests.hybrid_cases import write_async_run
from tests.pipeline_cases import STUDY, record, write_finished

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.study.pipeline.opening import open_measured
from scalewright.study.store import Store

pytestmark = pytest.mark.browser
HOSTILE = "</script><script>document.title='owned'</script>"
LEAST_TEXT_PX = 9.0
SMALL_TEXTS = """
return [...document.querySelectorAll('.hybrid svg:not(.lane-bar) text')].filter(
  t => t.textContent && t.getBoundingClientRect().height < arguments[0]).map(t => t.textContent);
"""
LANES_APART = """
const boxes = [...document.querySelectorAll('.hybrid .lane')].map(e => e.getBoundingClientRect()).filter(b => b.height);
return boxes.every((box, i) => i === 0 || box.top >= boxes[i - 1].bottom - 0.5);
"""


@pytest.fixture(scope="module")
def alone(shared_cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hybrid")
    directory = write_finished(folder / "run", record("grpo", 100))
    write_async_run(directory.path, hostile=HOSTILE)
    done = shared_cli("report", "run", "--page", "run.html", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run.html"


@pytest.fixture(scope="module")
def inside(shared_cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hybrid-pipeline")
    (folder / "mine.toml").write_text(STUDY)
    study, results = open_measured(Catalog((packaged_data(),)), str(folder / "mine.toml"), folder / "results")
    store, pipeline = Store.create_or_resume(results, study), study.pipeline
    assert pipeline is not None
    for run, combination in zip(pipeline.runs, study.combinations, strict=True):
        stage = str(combination.options["stage"])
        directory = write_finished(store.run_of(run.point, 0).path, record(stage, 200))
        if stage == "grpo":
            write_async_run(directory.path, steps=12)
    done = shared_cli("study", "report", "mine.toml", "--results", "results", "--no-plots", cwd=folder)
    assert done.returncode == 0, done.stderr
    return results / "report" / "index.html"


def opened(browser, path: Path, width: int) -> None:
    resize(browser, width)
    requested(browser)
    browser.get_log("browser")
    browser.get(path.as_uri())


@pytest.mark.parametrize("width", [NARROW_PX, WIDE_PX])
def test_a_run_can_be_read_at_any_width(browser, alone: Path, width: int) -> None:
    opened(browser, alone, width)
    assert set(requested(browser)) == {alone.as_uri()}
    assert browser.get_log("browser") == []
    assert browser.title.startswith("run: grpo of")
    assert browser.execute_script(OVERFLOWING) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script(SMALL_TEXTS, LEAST_TEXT_PX) == []
    assert browser.execute_script(LANES_APART)
    bars = browser.execute_script(
        "return [...document.querySelectorAll('.lane-bar')].map(e => e.getBoundingClientRect().width)"
    )
    assert len(bars) == 12
    assert min(bars) > 0.6 * width


def test_lanes_say_what_they_show(browser, alone: Path) -> None:
    opened(browser, alone, WIDE_PX)
    labels = browser.execute_script(
        "return [...document.querySelectorAll('.window .lane-bar')].map(e => e.getAttribute('aria-label'))"
    )
    assert [label.partition(":")[0] for label in labels] == [
        "controller 0", "trainer 0", "trainer 1", "engine 0", "engine 1", "sandbox 0"
    ]  # fmt: skip
    titles = browser.execute_script(
        "return [...document.querySelectorAll('.window .lane-bar title')].map(e => e.textContent)"
    )
    assert any(title.startswith("weight sync ") and "version" in title for title in titles)
    assert any(title.startswith("waiting ") and title.endswith("for weights") for title in titles)


@pytest.mark.parametrize("width", [NARROW_PX, WIDE_PX])
def test_each_stage_of_a_pipeline_has_its_own_lanes(browser, inside: Path, width: int) -> None:
    opened(browser, inside, width)
    assert browser.get_log("browser") == []
    names = browser.execute_script("return [...document.querySelectorAll('.lanes-of summary')].map(e => e.textContent)")
    assert names == ["grpo", "grpo-unmasked"]
    assert browser.execute_script("return document.querySelectorAll('.lanes-of .hybrid').length") == 2
    assert browser.execute_script(OVERFLOWING) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
