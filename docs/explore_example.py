"""Make the example of the explorer's page: explore-example.html, and a picture of it.

python docs/explore_example.py

Needs Chromium and its driver for the picture (`apt-get install chromium-driver`).
"""

import shutil
import sys
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

sys.path.append(str(Path(__file__).parents[1] / "apps"))
from reproduction.nnslicer.drawing import draw
from reproduction.nnslicer.settings import DrawingSettings

FOLDER = Path(__file__).parent
PAGE = FOLDER / "explore-example.html"
SIZE = (1500, 1010)

# What somebody would click: an operation, then its neuron with the largest contribution.
CLICKS = """
const { explorer } = document.querySelector('.nnx');
explorer.open(explorer.doc.operations.findIndex((operation) => operation.name === 'conv2'));
const sizes = [...explorer.one.contributions(explorer.operation)].map(Math.abs);
explorer.chooseNeuron(sizes.indexOf(Math.max(...sizes)));
"""


def main() -> None:
    """Write the page and its picture."""
    settings = DrawingSettings(model="digits_cnn", dataset="digits", images=30, train=1437)
    draw(settings).view().save(PAGE)
    options = Options()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--window-size={},{}".format(*SIZE))
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    driver.get(PAGE.as_uri())
    while not driver.execute_script("return Boolean(document.querySelector('.nnx')?.explorer)"):
        pass
    driver.execute_script(CLICKS)
    driver.save_screenshot(str(PAGE.with_suffix(".png")))
    driver.quit()


if __name__ == "__main__":
    main()
