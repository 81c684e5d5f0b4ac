"""Analyse networks along exact lines: decision boundaries, attributions, linearity.

python apps/analyse_lines.py acas --networks FOLDER
python apps/analyse_lines.py attributions
python apps/analyse_lines.py linearity
python apps/analyse_lines.py program
python apps/analyse_lines.py program-attributions
python apps/analyse_lines.py train mnist pgd
"""

from reproduction.application import add_experiment, application, main
from reproduction.exactline.settings import (
    AcasSettings,
    AttributionSettings,
    LinearitySettings,
    ProgramAttributionSettings,
    ProgramSettings,
    TrainingSettings,
)

LINES = "reproduction.exactline"

app = application(__doc__)
add_experiment(app, "acas", AcasSettings, f"{LINES}.boundaries:boundaries")
add_experiment(app, "attributions", AttributionSettings, f"{LINES}.attributions:attributions")
add_experiment(app, "linearity", LinearitySettings, f"{LINES}.linearities:linearities")
add_experiment(app, "program", ProgramSettings, f"{LINES}.program:linearities_by_program")
add_experiment(
    app,
    "program-attributions",
    ProgramAttributionSettings,
    f"{LINES}.program:attributions_by_program",
)
add_experiment(app, "train", TrainingSettings, f"{LINES}.networks:train")

if __name__ == "__main__":
    main(app)
