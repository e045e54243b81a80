"""A real browser, and what tests ask of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
NARROW_PX, WIDE_PX, HEIGHT_PX = 400, 1280, 900
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
# Elements that reach beyond the window, unless an ancestor scrolls them, hides them on purpose or is a drawer.
OVERFLOWING = """
const wide = window.innerWidth + 1;
return [...document.querySelectorAll('main *, header *, footer *')].filter(e => {
  const box = e.getBoundingClientRect();
  if (!box.width || !box.height || (box.right <= wide && box.left >= -1)) return false;
  for (let p = e.parentElement; p && p !== document.body; p = p.parentElement) {
    const style = getComputedStyle(p);
    if (['auto', 'scroll', 'hidden', 'clip'].includes(style.overflowX) || style.position === 'fixed') return false;
  }
  return getComputedStyle(e).position !== 'fixed';
}).map(e => e.outerHTML.slice(0, 120));
"""


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    driver.set_page_load_timeout(60)
    # A window without a screen may not have the focus, and then no element gets the event.
    driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
    yield driver
    driver.quit()


def resize(browser, width: int) -> None:
    """The width of the page itself: a window cannot be made as narrow as a phone."""
    metrics = {"width": width, "height": HEIGHT_PX, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def requested(browser) -> list[str]:
    """Addresses asked for since the last call, from the performance log."""
    addresses = []
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            addresses.append(message["params"]["request"]["url"])
    return addresses
