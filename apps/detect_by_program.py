"""Detect adversarial inputs by the rule of the NNSlicer paper's program (Table 4).

Adversarial examples are kept in the working folder.
"""

from reproduction.application import experiments, main

app = experiments(
    __doc__,
    "nnslicer",
    ("detect", "ProgramDetectionSettings", "program_detection:detect_by_program"),
)

if __name__ == "__main__":
    main(app)
