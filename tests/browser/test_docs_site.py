"""The documentation as a browser shows it: right numbers, no foreign requests, no errors, narrow windows."""

from __future__ import annotations

import functools
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.browser.conftest import NARROW_PX, OVERFLOWING, WIDE_PX, requested, resize

pytestmark = pytest.mark.browser
ROOT = Path(__file__).resolve().parents[2]
LOADED = "return performance.getEntriesByType('resource').map(e => e.name)"
RESOURCES = """
return [...document.querySelectorAll('link[rel=stylesheet], script[src]')].map(e => e.href || e.src).sort();
"""
OTHER_ARTICLES = (
    """
const [addresses, shared, done] = arguments;
const overflowing = () => {"""
    + OVERFLOWING
    + """};
(async () => {
  const faults = [];
  for (const address of addresses) {
    const text = await (await fetch(address)).text();
    const page = new DOMParser().parseFromString(text, 'text/html');
    const resources = [...page.querySelectorAll('link[rel=stylesheet], script[src]')].map(e => e.href || e.src).sort();
    if (String(resources) !== String(shared)) faults.push([address, resources]);
    document.querySelector('article').replaceWith(document.adoptNode(page.querySelector('article')));
    const width = document.documentElement.scrollWidth;
    if (width > window.innerWidth) faults.push([address, width]);
    const wide = overflowing();
    if (wide.length) faults.push([address, wide]);
  }
  done(faults);
})();
"""
)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once, strictly: every page is there, and nothing is warned of."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    sources = sorted((ROOT / "docs").rglob("*.md"))
    missing = [page for page in sources if not (folder / page.relative_to(ROOT / "docs").with_suffix(".html")).exists()]
    assert missing == []
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(QuietHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def pages(site: Path) -> list[str]:
    return sorted(str(page.relative_to(site)) for page in site.rglob("*.html"))


def percent(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "–"
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


def test_the_accuracy_table_shows_what_validate_says(browser, address: str, cli, tmp_path: Path) -> None:
    from selenium.webdriver.common.by import By

    document = json.loads(cli("validate", "--json", cwd=ROOT).stdout)
    resize(browser, WIDE_PX)
    browser.get(f"{address}/validation.html")
    tables = [t for t in browser.find_elements(By.CSS_SELECTOR, "main table") if t.is_displayed()]
    unseen, summary, groups = (
        [[c.text for c in row.find_elements(By.TAG_NAME, "td")] for row in t.find_elements(By.CSS_SELECTOR, "tbody tr")]
        for t in tables[:3]
    )
    stored = json.loads((ROOT / "benchmarks" / "results" / "held_out.json").read_text(encoding="utf-8"))
    assert [row[2] for row in unseen] == [
        *(percent(scores["mean_ape_frac"]) for scores in stored["sources"].values()),
        percent(stored["all"]["mean_ape_frac"]),
        percent(stored["all"]["balanced_mean_ape_frac"]),
    ]
    overall = document["overall"]
    keys = ("balanced_mape_frac", "mape_frac", "median_ape_frac")
    assert [row[1:] for row in summary] == [[percent(overall[k]), percent(overall[f"rule_{k}"])] for k in keys]
    expected_groups = [
        [
            g["source"],
            g["gpu"],
            g["dtype"],
            f"{g['num_timed']} of {g['num_rows']}",
            percent(g["mape_frac"]),
            percent(g["median_ape_frac"]),
            percent(g["bias_frac"], signed=True),
            percent(g["rule_mape_frac"]),
        ]
        for g in document["groups"]
    ]
    assert groups == expected_groups
    assert browser.save_screenshot(str(tmp_path / "validation.png"))


def foreign(addresses: list[str]) -> list[str]:
    """Chromium itself asks for pages of its own (chrome://, data:); those stay on this machine."""
    parts = [(address, urlsplit(address)) for address in addresses]
    return [a for a, part in parts if part.scheme in ("http", "https") and part.hostname != "127.0.0.1"]


def complaints(browser) -> list[str]:
    return [e["message"] for e in browser.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]


def check_narrow(browser, page: str) -> None:
    assert browser.execute_script("return window.innerWidth") == NARROW_PX
    assert browser.execute_script("return document.documentElement.scrollWidth") <= NARROW_PX, page
    assert browser.execute_script(OVERFLOWING) == [], page


@pytest.mark.timeout(1200)  # it visits some fifty pages, on whatever machine
def test_no_page_asks_other_hosts_complains_or_is_wider_than_a_narrow_window(
    browser, address: str, site: Path, tmp_path: Path
) -> None:
    for log in ("performance", "browser"):
        browser.get_log(log)
    of_rules = [page for page in pages(site) if page.startswith("lint/")]
    for page in [*(page for page in pages(site) if page not in of_rules), of_rules[0]]:
        resize(browser, WIDE_PX)
        browser.get(f"{address}/{page}")
        addresses = [*requested(browser), *browser.execute_script(LOADED)]
        assert addresses, page
        assert foreign(addresses) == [], page
        resize(browser, NARROW_PX)
        check_narrow(browser, page)
        assert complaints(browser) == [], page
    # The pages of the rules differ in their article alone: it takes the place of the one that is shown.
    shared = browser.execute_script(RESOURCES)
    assert len(shared) > 2
    browser.set_script_timeout(600)
    addresses = [f"{address}/{page}" for page in of_rules[1:]]
    assert len(addresses) > 50
    assert browser.execute_async_script(OTHER_ARTICLES, addresses, shared) == []
    assert foreign(requested(browser)) == []
    assert complaints(browser) == []
    assert browser.save_screenshot(str(tmp_path / "narrow.png"))


def test_the_check_for_overflow_sees_one(browser, address: str) -> None:
    resize(browser, NARROW_PX)
    browser.get(f"{address}/index.html")
    browser.execute_script(
        "const e = document.createElement('div'); e.style = 'width: 900px; height: 20px';"
        "document.querySelector('article').append(e)"
    )
    assert browser.execute_script("return document.documentElement.scrollWidth") > NARROW_PX
    assert len(browser.execute_script(OVERFLOWING)) == 1


def test_the_search_finds_a_formula(browser, address: str) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    resize(browser, WIDE_PX)
    browser.get(f"{address}/index.html")
    box = browser.find_element(By.CSS_SELECTOR, "input.md-search__input")
    box.click()
    box.send_keys("bubble_time_s")

    def hits(driver) -> list[str]:
        links = driver.find_elements(By.CSS_SELECTOR, ".md-search-result__link")
        return [link.get_attribute("href") for link in links]

    assert any("models/pipeline.html" in link for link in WebDriverWait(browser, 20).until(hits))
