"""Analyse networks on exact planes: decision maps, adversarial areas, compression, attributions."""

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
