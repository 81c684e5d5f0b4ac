"""Analyse networks on exact planes: decision maps, adversarial areas, compression, attributions."""

from reproduction.application import experiments

app = experiments(
    __name__,
    __doc__,
    "exactline",
    ("acas", "AdviceSettings", "advice_maps:advice_maps"),
    ("adversarial", "NeighbourhoodSettings", "planes:neighbourhoods"),
    ("compressed", "CompressedSettings", "planes:compressions"),
    ("baselines", "BaselineSettings", "planes:baselines"),
)
