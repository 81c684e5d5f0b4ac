"""Compare versions of models: the changes that made an answer flip, and which to take back.

A run that was stopped resumes.
"""

from reproduction.application import experiments

app = experiments(
    __name__,
    __doc__,
    "versions",
    ("flips", "FlipSettings", "changes:flips"),
    ("history", "HistorySettings", "history:history"),
    ("reversions", "RevertSettings", "changes:reversions"),
)
