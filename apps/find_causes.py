"""Find causes of wrong outputs: locate and mend faults, repair provably, explain compression."""

from reproduction.application import experiments

app = experiments(
    __name__,
    __doc__,
    "debugging",
    ("faults", "LocalisationSettings", "localisation:localisation"),
    ("units", "UnitSettings", "units:units"),
    ("mending", "MendingSettings", "localisation:mending"),
    ("repair", "RepairSettings", "localisation:provable_repair"),
    ("compression", "CompressionSettings", "compression:compression"),
    ("recipes", "RecipeSettings", "recipes:recipes"),
)
