"""Pages in Chromium, without a window, and pictures of them.

Needs Chromium, its driver (`apt-get install chromium-driver`) and selenium.
"""

import io
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

WIDE, PHONE = (1366, 768), (390, 844)
"""Width and height of a laptop's window, and of a phone's."""

_DRAWN = """
    const view = document.querySelector('.nnx');
    return (!view || Boolean(view.explorer))
      && [...document.images].every((image) => image.complete);"""


@contextmanager
def chromium() -> Iterator[Any]:
    """Start a browser, and stop it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--hide-scrollbars")
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def picture(
    driver: Any,
    page: Path,
    size: tuple[int, int] = WIDE,
    dark: bool = False,
    clicks: str = "",
) -> bytes:
    """Return a PNG of the top of a page after clicks (JavaScript)."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.get(page.resolve().as_uri())
    end = time.monotonic() + 60
    while not driver.execute_script(_DRAWN):
        if time.monotonic() > end:
            raise TimeoutError(f"The browser does not draw '{page}'.")
        time.sleep(0.05)
    driver.execute_script(f"const explorer = document.querySelector('.nnx')?.explorer;\n{clicks}")
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(driver.get_screenshot_as_png())) as image:
        image.convert("RGB").save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
