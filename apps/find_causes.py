"""Find causes of wrong outputs: locate and mend faults, repair provably, explain compression."""

from reproduction.application import experiments, main

app = experiments(
    __doc__,
    "debugging",
    ("faults", "LocalisationSettings", "localisation:localisation"),
    ("mending", "MendingSettings", "mending:mending"),
    ("repair", "RepairSettings", "mending:provable_repair"),
    ("compression", "CompressionSettings", "compression:compression"),
)

if __name__ == "__main__":
    main(app)
