"""Analyse networks along exact lines: decision boundaries, attributions, linearity."""

from reproduction.application import experiments, main

app = experiments(
    __doc__,
    "exactline",
    ("acas", "AcasSettings", "boundaries:boundaries"),
    ("attributions", "AttributionSettings", "attributions:attributions"),
    ("linearity", "LinearitySettings", "linearities:linearities"),
    ("program", "ProgramSettings", "program:linearities_by_program"),
    ("program-attributions", "ProgramAttributionSettings", "program:attributions_by_program"),
    ("train", "TrainingSettings", "networks:train"),
)

if __name__ == "__main__":
    main(app)
