"""Train a model of the zoo, and write its weights and a log.

    python apps/train.py resnet10

An interrupted run continues from its last finished epoch when the same command is given again.
VGG-16 and AlexNet take hours on two cores, and minutes on a GPU; JAX can be used in place of
TensorFlow there, once it is installed (`pip install jax[cuda13]`):

    KERAS_BACKEND=jax python apps/train.py vgg16
"""

from reproduction.application import add_experiment, application, main
from reproduction.zoo.settings import TrainingSettings

TRAINING = "reproduction.zoo.training"

app = application(__doc__)
add_experiment(
    app, "train", TrainingSettings, f"{TRAINING}:train", finish=f"{TRAINING}:write_summary"
)

if __name__ == "__main__":
    main(app)
