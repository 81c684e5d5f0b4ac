"""Train a model of the zoo, and write its weights and a log.

    python apps/train.py resnet10

An interrupted run continues from its last finished epoch when the same command is given again.
VGG-16 and AlexNet take hours on two cores, and minutes on a GPU; JAX can be used in place of
TensorFlow there, once it is installed (`pip install jax[cuda13]`):

    KERAS_BACKEND=jax python apps/train.py vgg16
"""

from reproduction.application import experiments

app = experiments(
    __name__,
    __doc__,
    "zoo",
    ("train", "TrainingSettings", "training:train", "", "training:write_summary"),
)
