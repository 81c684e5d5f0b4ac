"""Find inputs on which compressed models deviate: the DFlare paper's experiments.

    python apps/find_deviations.py search lenet1 resnet20 --models <folder>
    python apps/find_deviations.py agreement lenet1 resnet20 --models <folder>
    python apps/find_deviations.py ablation | dissemination | repair
    python apps/find_deviations.py layers resnet20 --models <folder>
    python apps/find_deviations.py sentences

Commands take names of model pairs (see `reproduction.dflare.pairs`; dissemination and
layers take originals), and write tables with the paper's figures beside ours. An interrupted
command continues from its working folder when it is given again.
"""

from reproduction.application import experiments, main

app = experiments(
    __doc__,
    "dflare",
    ("search", "SearchSettings", "searches:search"),
    ("agreement", "AgreementSettings", "agreement:agreement"),
    ("ablation", "AblationSettings", "searches:ablation"),
    ("dissemination", "DisseminationSettings", "searches:dissemination"),
    ("layers", "LayerSettings", "layers:layers"),
    ("repair", "RepairSettings", "searches:repair"),
    ("sentences", "SentenceSettings", "sentences:sentences"),
)

if __name__ == "__main__":
    main(app)
