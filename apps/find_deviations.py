"""Find inputs on which compressed models deviate: the DFlare paper's experiments.

Commands take names of model pairs (see `reproduction.dflare.pairs`; dissemination and
layers take originals), and write tables with the paper's figures beside ours. An interrupted
command continues from its working folder when it is given again.
"""

from reproduction.application import experiments

app = experiments(
    __name__,
    __doc__,
    "dflare",
    ("search", "SearchSettings", "searches:search"),
    ("agreement", "AgreementSettings", "agreement:agreement"),
    ("ablation", "AblationSettings", "searches:ablation"),
    ("dissemination", "DisseminationSettings", "searches:dissemination"),
    ("layers", "LayerSettings", "searches:layers"),
    ("repair", "RepairSettings", "searches:repair"),
    ("sentences", "SentenceSettings", "searches:sentences"),
)
