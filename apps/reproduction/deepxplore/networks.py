"""The networks compared in DeepXplore's experiments."""

from pathlib import Path

from nnslicer_tf import zoo
from nnslicer_tf._names import check_name
from nnslicer_tf.instrument import InstrumentedModel
from reproduction.deepxplore.published import published_lenet

_OF_CIFAR10 = ("resnet10", "resnet10_preactivation", "vit")
DATASETS = ("mnist", "cifar10")


def networks(dataset: str, folder: Path) -> list[InstrumentedModel]:
    """Return three classifiers of the same images.

    Args:
        dataset: `"mnist"`: LeNet-1 and LeNet-4 with the weights that DeepXplore's authors
            published, and the zoo's LeNet-5; `"cifar10"`: networks of the zoo.
        folder: The folder of the published weights (`lenet1_weights.h5`, `lenet4_weights.h5`).
    """
    check_name("data set", dataset, DATASETS)
    if dataset == "cifar10":
        return [InstrumentedModel(zoo.load(name, dataset)) for name in _OF_CIFAR10]
    published = [
        published_lenet(name, folder / f"{name}_weights.h5") for name in ("lenet1", "lenet4")
    ]
    return [InstrumentedModel(model) for model in (*published, zoo.load("lenet5", dataset))]
