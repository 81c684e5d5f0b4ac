"""Reproduce the papers' tables and figures: list them, run one, report all.

    python apps/reproduce.py list
    python apps/reproduce.py run nnslicer/table4 --quick
    python apps/reproduce.py run exactline/figure2 -- --networks FOLDER
    python apps/reproduce.py report

`run` starts the app that makes a table. A full run writes to the app's results folder; a trial
(`--quick`) writes to `runs/reproduce`, and never replaces results. `report` writes a single page
with everything, as HTML and Markdown, and the headlines to docs/results.md.
"""

from nnslicer_tf.cli.reproduce import app
from nnslicer_tf.experiments.application import main

if __name__ == "__main__":
    main(app)
