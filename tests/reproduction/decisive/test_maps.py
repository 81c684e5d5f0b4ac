"""Maps by deletion and insertion: the areas of single samples, and their bootstrap intervals."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import bootstrap

import nnslicer_tf as nns
from nnslicer_tf import attributions, datasets, zoo
from reproduction.decisive.maps import maps
from reproduction.decisive.settings import MapSettings


def test_areas_and_intervals(tmp_path):
    s = MapSettings("digits_cnn", "train[95%:]", samples=12, profile=200, work=tmp_path)
    table = maps(s).tables[0].frame.set_index("method")
    (path,) = tmp_path.glob("maps-digits_cnn-*.csv")
    each = pd.read_csv(path).pivot(index="sample", columns="method", values="deletion")
    np.testing.assert_allclose(table["deletion"], each.mean()[table.index], atol=1e-4)

    # One sample, one method, by hand: hide the pixels of largest value one after another.
    train = datasets.load("digits", "train[:200]").x
    x = datasets.load("digits", s.split).x
    x = x[np.sort(np.random.default_rng(s.seed).permutation(len(x))[:12])][:1]
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    means = nns.Profile.from_data(im, train, progress=False).means
    label = int(im.predict(x).argmax())
    values = attributions.ATTRIBUTIONS["occlusion"](im, x[0], means, label)
    order, answers = np.argsort(-values.sum(-1).ravel(), kind="stable"), []
    for count in np.linspace(0, order.size, 41).astype(int):
        hidden = x.copy()
        rows, columns = np.unravel_index(order[:count], x.shape[1:3])
        hidden[0, rows, columns] = train.mean(axis=0)[rows, columns]
        logits = im.logits(hidden)[0].astype(float)
        answers.append(np.exp(logits[label] - np.logaddexp.reduce(logits)))
    area = np.trapezoid(answers, np.linspace(0, 1, 41))
    assert each["occlusion"][0] == pytest.approx(area, abs=2e-3)

    # The intervals are those of SciPy's percentile bootstrap.
    best = table["deletion"].idxmin()
    difference = (each["random"] - each[best]).to_numpy()
    known = bootstrap(
        (difference,), np.mean, n_resamples=20_000, method="percentile", rng=1
    ).confidence_interval
    found = table.loc["random", ["deletion, from", "deletion, to"]].astype(float)
    np.testing.assert_allclose(found, known, atol=0.02)
    assert not table.loc["random", "deletion, tied"]
