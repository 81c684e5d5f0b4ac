"""The experiments on other samples' values, beside masked models that are run one by one."""

import numpy as np
import pandas as pd

import nnslicer_tf as nns
from nnslicer_tf import datasets, instrument, zoo
from reproduction.decisive.others import OTHERS, PATH, others
from reproduction.decisive.settings import OthersSettings


def test_what_slices_keep_for_other_samples(tmp_path):
    sizes = {"samples": 2, "profile": 100, "background": 60, "unseen": 4, "ranked": 1, "points": 2}
    s = OthersSettings("digits_cnn", "test", splits=2, work=tmp_path, **sizes)
    table = others(s).tables[0].frame.set_index("method")
    (path,) = tmp_path.glob("others-digits_cnn-*.csv")
    rows = pd.read_csv(path)
    assert len(rows) == 2 * 6 + 1 and table.loc[PATH, "samples"] == 1
    every = rows[rows["method"] == OTHERS]
    assert table.loc[OTHERS, "promises"] == len(every) == 4
    assert table.loc[OTHERS, "broken"] == (every["kept"] < 0.9).mean()
    # The same samples and slices again: a Keras model for each other sample.
    data = datasets.load("digits", "test").x.astype(np.float32)
    data = data[np.random.default_rng(s.seed).permutation(len(data))]
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    profile = nns.Profile.from_data(im, datasets.load("digits", "train[:100]").x, progress=False)
    found = nns.Slicer(im, profile, workers=0, progress=False).decisive(data[:2], others=0)
    for index in (0, 1):
        kept = [
            instrument.Ablation(im, instrument.Samples(donor[None]))
            .model(found.masks(index))
            .predict(data[index : index + 1], verbose=0)
            .argmax()
            == found.certificate["answer"][index]
            for donor in data[2:6]
        ]
        row = rows[(rows["method"] == "mean") & (rows["sample"] == index)].iloc[0]
        assert row["kept"] == np.mean(kept) and row["share"] == found.certificate["share"][index]
