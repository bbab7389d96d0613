"""A real browser for tests: Chromium or Chrome without a window, and axe, which looks for what is hard to use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

_BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
_OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--no-proxy-server", "--disable-background-networking", "--disable-component-update")  # fmt: skip


def _found() -> tuple[str, str]:
    path = os.pathsep.join([os.environ["PATH"], os.environ.get("CHROMEWEBDRIVER", "")])
    browser = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver", path=path)
    if browser is None or driver is None:
        raise FileNotFoundError("the tests of the console need Chromium and its driver: 'make browser' installs them")
    return browser, driver


class Browser:
    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        self.driver.get(url)

    def look(self, width: int = 1200, height: int = 900, theme: str = "light") -> None:
        """How large its window is, and what the system says about colours."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        wanted = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)

    def scripts(self, allowed: bool) -> None:
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not allowed})

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str = "body") -> str:
        return str(self.find(selector).text)

    def shows(self, selector: str, text: str) -> bool:
        """Whether the text is there now; a page may be on its way."""
        try:
            return text in self.text(selector)
        except (NoSuchElementException, StaleElementReferenceException):
            return False

    def fill(self, selector: str, text: str) -> None:
        field = self.find(selector)
        field.clear()
        field.send_keys(text)

    def complaints(self) -> list[str]:
        """What it has said since the last time: errors of scripts, and what the page's policy has refused."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]

    def hard_to_use(self) -> list[str]:
        """What axe calls serious or critical."""
        self.run(_axe())
        asked = "const done = arguments[arguments.length - 1]; axe.run().then(r => done(r.violations), String)"
        found = self.driver.execute_async_script(asked)
        assert isinstance(found, list), found
        serious = [each for each in found if each["impact"] in ("serious", "critical")]
        return [
            f"{each['id']}: {node['html'][:200]} {node['failureSummary']}" for each in serious for node in each["nodes"]
        ]


@cache
def _axe() -> str:
    return files("selenium_axe_python").joinpath("axe-core", "axe.min.js").read_text(encoding="utf-8")


@contextmanager
def browser() -> Iterator[Browser]:
    path, driver_path = _found()
    options = webdriver.ChromeOptions()
    options.binary_location = path
    for option in _OPTIONS:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_path))
    try:
        driver.set_script_timeout(60)
        yield Browser(driver)
    finally:
        driver.quit()
