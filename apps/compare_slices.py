"""Compare slices with other rankings: of synapses that keep the answer, of features that decide.

A run that was stopped resumes.
"""

from reproduction.application import experiments

app = experiments(
    __name__,
    __doc__,
    "decisive",
    ("synapses", "DecisiveSettings", "comparison:compare"),
    ("maps", "MapSettings", "maps:maps"),
    ("others", "OthersSettings", "others:others"),
    ("classes", "ClassSettings", "classes:classes"),
    ("class-rankings", "ClassSettings", "classes:rankings"),
    first_by_default=True,
)
