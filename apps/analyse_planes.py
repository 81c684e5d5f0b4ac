"""Analyse networks on exact planes: decision maps, adversarial areas, compression, attributions.

python apps/analyse_planes.py acas --networks FOLDER
python apps/analyse_planes.py adversarial
python apps/analyse_planes.py compressed
python apps/analyse_planes.py baselines
"""

from reproduction.application import add_experiment, application, main
from reproduction.exactline.settings import (
    AdviceSettings,
    BaselineSettings,
    CompressedSettings,
    NeighbourhoodSettings,
)

PLANES = "reproduction.exactline"

app = application(__doc__)
add_experiment(app, "acas", AdviceSettings, f"{PLANES}.advice_maps:advice_maps")
add_experiment(app, "adversarial", NeighbourhoodSettings, f"{PLANES}.neighbourhoods:neighbourhoods")
add_experiment(app, "compressed", CompressedSettings, f"{PLANES}.compressions:compressions")
add_experiment(app, "baselines", BaselineSettings, f"{PLANES}.baselines:baselines")

if __name__ == "__main__":
    main(app)
