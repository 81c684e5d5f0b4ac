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

from reproduction.application import add_experiment, application, main
from reproduction.dflare.settings import (
    AblationSettings,
    AgreementSettings,
    DisseminationSettings,
    LayerSettings,
    RepairSettings,
    SearchSettings,
    SentenceSettings,
)

DFLARE = "reproduction.dflare"

app = application(__doc__)
add_experiment(app, "search", SearchSettings, f"{DFLARE}.searches:search")
add_experiment(app, "agreement", AgreementSettings, f"{DFLARE}.agreement:agreement")
add_experiment(app, "ablation", AblationSettings, f"{DFLARE}.searches:ablation")
add_experiment(app, "dissemination", DisseminationSettings, f"{DFLARE}.searches:dissemination")
add_experiment(app, "layers", LayerSettings, f"{DFLARE}.layers:layers")
add_experiment(app, "repair", RepairSettings, f"{DFLARE}.searches:repair")
add_experiment(app, "sentences", SentenceSettings, f"{DFLARE}.sentences:sentences")

if __name__ == "__main__":
    main(app)
