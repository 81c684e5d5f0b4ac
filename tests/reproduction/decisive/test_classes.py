"""The experiments on slices of classes, of which masked models are run again in NumPy."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

import nnslicer_tf as nns
from nnslicer_tf import datasets, instrument, zoo
from reproduction.decisive.classes import SEARCH, classes, rankings
from reproduction.decisive.settings import ClassSettings

OPTIONS = {"profile": 200, "of_class": 60, "others": 120, "at_least": 0.8, "at_most": 0.2}


@pytest.mark.whole
def test_slices_of_classes_are_judged_on_the_rest(tmp_path):
    s = ClassSettings("digits_cnn", "train", splits=1, work=tmp_path, **OPTIONS)
    result = classes(s)
    table = result.table("classes-digits_cnn")
    assert table["label"].tolist() == list(range(10)) and (table["judges"] > 50).all()
    (row,) = result.table("classes-digits_cnn-bounds").to_dict("records")
    broken = (table["kept"] < 0.8) | (table["claimed"] > 0.2)
    assert row["promises"] == 10 and row["broken"] == broken.mean() <= 0.2
    assert row["median share"] == pytest.approx(table["share"].median(), abs=1e-4)
    assert row["median share"] < 1


@pytest.mark.whole
def test_rankings_are_given_the_same_samples(tmp_path):
    s = ClassSettings("digits_cnn", "train", work=tmp_path, **OPTIONS)
    table = rankings(s).tables[0].frame.set_index("method")
    assert table.index[0] == SEARCH and (table["classes"] == 10).all()
    # Bounds of 0.8 and 0.2 are seldom missed by far on the rest.
    assert (table["kept"] > 0.7).all() and (table["claimed"] < 0.3).all()
    assert (table["at best"] <= table["median share"]).all()
    assert table.loc[SEARCH, "decisive() beside it"] == 1
    # The largest weights of class 0, tested once more with a Keras model.
    x = datasets.load("digits", "train").x.astype(np.float32)
    x = x[np.random.default_rng(s.seed).permutation(len(x))]
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    profile = nns.Profile.from_data(im, datasets.load("digits", "train[:200]").x, progress=False)
    order = np.random.default_rng([s.seed, 0]).permutation(len(x))
    is_own = im.predict(x[order]).argmax(axis=1) == 0
    tests, strangers = order[is_own][30:60], order[~is_own][60:120]
    kernels = {name: np.abs(view.kernel()) for name, view in im.kernels.items()}
    sizes = np.sort(np.concatenate([k.ravel() for k in kernels.values()]))[::-1]
    count, smallest = len(sizes), 1.0
    while count > 0.05 * len(sizes):
        count = int(0.9 * count)
        masks = {name: (k >= sizes[count - 1]).astype(np.float32) for name, k in kernels.items()}
        model = instrument.Ablation(im, profile).model(masks)
        kept, claimed = (
            model.predict(x[part], verbose=0).argmax(axis=1) == 0 for part in (tests, strangers)
        )
        limits = binomtest_low(kept), binomtest_low(~claimed)
        smallest = count / len(sizes) if min(limits) >= 0.8 else smallest
    (path,) = tmp_path.glob("ranked-classes-digits_cnn-*.csv")
    rows = pd.read_csv(path).set_index(["method", "label"])
    assert rows.loc[("|weight|", 0), "at best"] == pytest.approx(smallest)


def binomtest_low(successes):
    """Return the lower bound of a share, with 95 % confidence."""
    test = binomtest(int(successes.sum()), len(successes), alternative="greater")
    return test.proportion_ci(0.95, method="exact").low
