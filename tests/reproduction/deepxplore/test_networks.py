"""The networks of the DeepXplore paper, and the published weights."""

import pandas as pd
import pytest

import nnslicer_tf as nns
from nnslicer_tf.deepxplore import NeuronCoverage
from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError
from reproduction.deepxplore.networks import published_lenet
from reproduction.settings import DATA


@pytest.mark.parametrize("row", range(3))
def test_the_lenets_have_the_papers_neurons_and_parameters(row):
    table = pd.read_csv(DATA / "paper/deepxplore/table1_models.csv", comment="#")
    paper = table.iloc[row]
    model = published_lenet(paper["model"].lower().replace("-", ""))
    cov = NeuronCoverage(nns.InstrumentedModel(model))
    assert len(cov.neurons) == paper["neurons"] == sum(mask.size for mask in cov.covered.values())
    assert model.count_params() == paper["parameters"]


def test_published_weights_classify(shared_data):
    from nnslicer_tf import datasets, zoo

    test = datasets.load("mnist", "test[:1000]")
    for name in ("lenet1", "lenet4"):
        model = published_lenet(name, shared_data / f"models/deepxplore/{name}_weights.h5")
        assert zoo.accuracy(model, test) > 0.97


def test_weights_of_another_network_are_refused(tmp_path):
    published_lenet("lenet4").save_weights(tmp_path / "other.weights.h5")
    with pytest.raises(CorruptFileError, match="does not hold weights of 'lenet1'"):
        published_lenet("lenet1", tmp_path / "other.weights.h5")


def test_what_does_not_exist_is_refused():
    with pytest.raises(InvalidArgumentError, match="Expected one of: 'lenet1', 'lenet4', 'lenet5'"):
        published_lenet("lenet2")
    with pytest.raises(InvalidArgumentError, match=r"There is no file 'nowhere\.h5'"):
        published_lenet("lenet1", "nowhere.h5")
