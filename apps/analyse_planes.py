"""Analyse networks on exact planes: decision maps, adversarial areas, compression, attributions.

python apps/analyse_planes.py acas --networks FOLDER
python apps/analyse_planes.py adversarial
python apps/analyse_planes.py compressed
python apps/analyse_planes.py baselines
"""

from reproduction.application import experiments, main

app = experiments(
    __doc__,
    "exactline",
    ("acas", "AdviceSettings", "advice_maps:advice_maps"),
    ("adversarial", "NeighbourhoodSettings", "neighbourhoods:neighbourhoods"),
    ("compressed", "CompressedSettings", "compressions:compressions"),
    ("baselines", "BaselineSettings", "baselines:baselines"),
)

if __name__ == "__main__":
    main(app)
