"""Analyse networks along exact lines: decision boundaries, attributions, linearity."""

from reproduction.application import experiments

app = experiments(
    __name__,
    __doc__,
    "exactline",
    ("acas", "AcasSettings", "advice_maps:boundaries"),
    ("attributions", "AttributionSettings", "attributions:attributions"),
    ("linearity", "LinearitySettings", "linearities:linearities"),
    ("integrals", "PathIntegralSettings", "path_integrals:path_integrals"),
    ("program", "ProgramSettings", "linearities:linearities_by_program"),
    ("program-attributions", "ProgramAttributionSettings", "attributions:attributions_by_program"),
    ("properties", "PropertySettings", "properties:properties"),
    ("train", "TrainingSettings", "networks:train"),
)
