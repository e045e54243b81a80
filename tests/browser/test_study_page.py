"""A study's page as a browser shows it: no request, no error, charts drawn, tables sorted, narrow and in print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.browser.conftest import NARROW_PX, OVERFLOWING, WIDE_PX, requested, resize
from tests.conftest import Cli

pytestmark = pytest.mark.browser
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
MAX_BYTES = 5_000_000
A4_PX = 1032
"""Width of a landscape page between its margins, at 96 pixels an inch."""


@pytest.fixture(scope="module")
def page(shared_cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    done = shared_cli("study", "predict", "epicure-language", "--out", "report", "--no-plots", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "report" / "index.html"


def opened(browser, path: Path, width: int = WIDE_PX) -> None:
    resize(browser, width)
    requested(browser)
    browser.get_log("browser")
    browser.get(path.as_uri())


def test_it_loads_alone_and_draws_its_charts(browser, page: Path) -> None:
    assert page.stat().st_size < MAX_BYTES
    opened(browser, page)
    assert set(requested(browser)) == {page.as_uri()}
    assert browser.get_log("browser") == []
    counts = browser.execute_script(
        "return [...document.querySelectorAll('.plots svg')].map(s => s.querySelectorAll('circle').length)"
    )
    report = json.loads((page.parent / "report.json").read_text())
    assert len(counts) >= 4
    assert counts[0] == sum(len(point["published"]) for point in report["points"])
    assert min(counts[1:]) > 10
    assert browser.execute_script("return document.querySelectorAll('.points tbody tr').length") == 240


def test_tables_sort_by_value_and_filter_by_words(browser, page: Path) -> None:
    opened(browser, page)
    titles = browser.execute_script("return [...document.querySelectorAll('.points thead th')].map(t => t.textContent)")
    column = titles.index("rate per device, predicted")
    shown = (
        "return [...document.querySelectorAll('.points tbody tr')]"
        f".map(r => r.cells[{column}].dataset.value).filter(v => v !== '').map(Number)"
    )
    for descending in (False, True):
        browser.execute_script(
            f"document.querySelectorAll('.points thead th')[{column}].querySelector('button').click()"
        )
        values = browser.execute_script(shown)
        assert values == sorted(values, reverse=descending)
    browser.execute_script(
        "const f = document.querySelector('.filter'); f.value = 'lumi strong'; f.dispatchEvent(new Event('input'))"
    )
    left = "return [...document.querySelectorAll('.points tbody tr')].filter(r => !r.hidden).map(r => r.textContent)"
    rows = browser.execute_script(left)
    assert len(rows) == 18  # three sizes
    assert all("lumi" in row and "strong" in row for row in rows)


def test_marks_tell_their_value_to_mouse_and_keyboard(browser, page: Path) -> None:
    opened(browser, page)
    label = browser.execute_script(
        "const m = document.querySelector('svg[aria-label=\"Chart of rate per device\"] circle'); m.focus();"
        "return [m.getAttribute('aria-label'), document.querySelector('.tip')?.textContent]"
    )
    assert "TFLOP/s" in label[0]
    assert "system lumi" in label[1]


def test_series_can_be_hidden_and_chosen(browser, page: Path) -> None:
    opened(browser, page)
    count = "return document.querySelectorAll('svg[aria-label=\"Chart of rate per device\"] circle').length"
    before = browser.execute_script(count)
    browser.execute_script("document.querySelector('.legend button').click()")
    assert 0 < browser.execute_script(count) < before
    browser.execute_script(
        "const s = document.querySelector('.controls select');"
        "s.value = 'leonardo'; s.dispatchEvent(new Event('change'))"
    )
    names = browser.execute_script(
        "return [...document.querySelectorAll('.plots svg circle')].map(c => c.getAttribute('aria-label'))"
    )
    assert names
    assert all("leonardo" in name for name in names)


def test_the_first_chart_compares_every_published_figure(browser, page: Path) -> None:
    opened(browser, page)
    report = json.loads((page.parent / "report.json").read_text())
    told = sum(len(point["published"]) for point in report["points"])
    title, num_marks = browser.execute_script(
        "const f = document.querySelector('.plots figure');"
        "return [f.querySelector('figcaption').textContent, f.querySelectorAll('circle').length]"
    )
    assert title == "Predicted over published"
    assert num_marks == told > 5
    assert browser.execute_script("return document.querySelectorAll('.published tbody tr').length") == told


def test_no_header_covers_another_and_no_advice_is_empty(browser, page: Path) -> None:
    opened(browser, page)
    covered = browser.execute_script(
        "const heads = [...document.querySelectorAll('.points th')].map(h => h.getBoundingClientRect());"
        "return heads.filter((h, i) => i && heads[i - 1].right > h.left + 1).length"
    )
    assert covered == 0
    empty = browser.execute_script(
        "return [...document.querySelectorAll('.stop tbody td')].filter(c => !c.textContent.trim()).length"
    )
    assert empty == 0
    assert "No advice for vega" in browser.execute_script("return document.body.innerText")


def test_print_is_light_and_keeps_the_legend(browser, page: Path) -> None:
    opened(browser, page)
    browser.execute_script("document.documentElement.dataset.theme = 'dark'")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    display = "return getComputedStyle(document.querySelector(arguments[0])).display"
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    shown = {name: browser.execute_script(display, name) for name in (".legend", ".controls", ".more")}
    resize(browser, A4_PX)
    width = browser.execute_script("return document.documentElement.scrollWidth")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert width <= A4_PX
    assert paper == "rgb(255, 255, 255)"
    assert shown == {".legend": "flex", ".controls": "none", ".more": "none"}


def test_a_point_explains_itself(browser, page: Path) -> None:
    opened(browser, page)
    browser.execute_script("document.querySelector('.more').click()")
    text = browser.execute_script("return document.querySelector('tr.detail').textContent")
    assert "Predicted shares of the step" in text
    assert "Point " in text


@pytest.mark.parametrize("width", [NARROW_PX, WIDE_PX])
def test_nothing_reaches_beyond_the_window(browser, page: Path, width: int) -> None:
    opened(browser, page, width)
    assert browser.execute_script(OVERFLOWING) == []


def test_on_a_phone_advice_and_breakdowns_are_there_without_scrolling_sideways(browser, page: Path) -> None:
    opened(browser, page, NARROW_PX)
    browser.execute_script("document.querySelector('.more').click()")
    beyond = browser.execute_script(
        "return [...document.querySelectorAll('.stop td, .points .more, tr.detail td > *')].filter(e => {"
        "  const box = e.getBoundingClientRect();"
        "  return box.width && (box.left < 0 || box.right > window.innerWidth);"
        "}).map(e => e.outerHTML.slice(0, 80))"
    )
    assert beyond == []


def test_hostile_names_stay_text(browser, cli: Cli, tmp_path: Path) -> None:
    text = f"""
schema = "scalewright.study/1"
id = "hostile"
title = {json.dumps(HOSTILE)}
question = {json.dumps(HOSTILE)}
kind = "language"
notes = [{json.dumps(HOSTILE)}]

[matrix]
word = [{json.dumps(HOSTILE)}, "plain"]

[point]
model = "gpt2-medium"
system = "lumi"
layout = "dp=8,mbs=1,gbs=8"
"""
    (tmp_path / "hostile.toml").write_text(text)
    done = cli("study", "predict", "hostile.toml", "--out", "report", "--no-plots", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    opened(browser, tmp_path / "report" / "index.html")
    assert browser.title == HOSTILE
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.images.length") == 0


def test_a_script_that_is_not_ours_does_not_run(browser, page: Path, tmp_path: Path) -> None:
    """Escaping is the first barrier, the page's policy the second: it names our script by its hash."""
    broken = tmp_path / "index.html"
    planted = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
    broken.write_text(page.read_text().replace("<main", f"{planted}<main", 1))
    assert planted in broken.read_text()
    opened(browser, broken)
    assert browser.title != "owned"
    refused = [
        entry["message"] for entry in browser.get_log("browser") if "Content Security Policy" in entry["message"]
    ]
    assert len(refused) >= 2, refused
    assert browser.execute_script("return document.querySelectorAll('.plots svg circle').length") > 0
