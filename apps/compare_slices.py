"""Compare slices with other rankings of synapses: what keeps the answer, alone?

A run that was stopped resumes.
"""

from reproduction.application import experiments, main

app = experiments(__doc__, "decisive", ("decisive", "DecisiveSettings", "comparison:compare"))

if __name__ == "__main__":
    main(app)
