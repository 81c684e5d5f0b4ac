"""Profiles by class, to compare each sample with the mean of its predicted class.

The paper's program does this, with 1,000 correctly classified training images of each class; the
paper itself uses one mean over the whole data set (NNSlicer, section 4.2).
"""

import numpy as np

from nnslicer_tf._checks import check_labels, counted
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import instrumented
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.instrument.outputs import check_classifier
from nnslicer_tf.slicing.profile import Profile


class ClassProfiles(dict[int, Profile]):
    """Class → profile of the samples that the model assigns to it."""

    def __missing__(self, target: int) -> Profile:
        raise InvalidArgumentError(
            f"There is no profile of class {target!r}; there are profiles of "
            f"{', '.join(map(str, self))}. Profile samples for which the model answers that class."
        )

    @classmethod
    def from_data(
        cls,
        im: ModelLike,
        x: np.ndarray,
        y: np.ndarray | None = None,
        batch_size: int = 256,
        progress: bool = True,
    ) -> "ClassProfiles":
        """Profile a model separately for each class that it predicts.

        Args:
            im: The model; a Keras model is instrumented.
            x: Samples `(samples, *input_shape)`.
            y: Their classes `(samples,)`. If given, misclassified samples are left out, as in
                the paper's program.
            batch_size: Samples in one forward pass.
            progress: Show a progress bar.

        Raises:
            InvalidArgumentError, InputShapeError, NonFiniteActivationError: for bad data.
        """
        im = instrumented(im, x)
        count = check_classifier(im)
        x = im.check(x)
        predicted = im.classes.from_logits(im.logits(x, batch_size))
        used = np.ones(len(x), bool) if y is None else predicted == check_labels(y, len(x), count)
        return cls(
            {
                int(c): Profile.from_data(im, x[used & (predicted == c)], batch_size, progress)
                for c in np.unique(predicted[used])
            }
        )

    def __repr__(self) -> str:
        return f"ClassProfiles({counted(len(self), 'class')})"
