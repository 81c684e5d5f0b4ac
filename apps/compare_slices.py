"""Compare slices with other rankings of synapses: what keeps the answer, alone?

A run that was stopped resumes.
"""

from reproduction.application import experiments

app = experiments(
    __name__, __doc__, "decisive", ("decisive", "DecisiveSettings", "comparison:compare")
)
