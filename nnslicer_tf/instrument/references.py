"""What an inactive part contributes in place of its own value: the reference of an ablation.

| reference | value of an inactive part |
|---|---|
| `Mean(profile)` | its mean over the profiled data |
| `Zero()` | 0 |
| `Samples(x)` | its values for other samples, the *donors*; one answer for each donor |
| `Weights(model)` | that of another version of the model; a weight becomes the other's weight |

To add a reference, write a class with the methods of `Reference`.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import Any

import keras
import numpy as np

from nnslicer_tf.errors import InvalidArgumentError, ProfileMismatchError
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.model import InstrumentedModel, ModelLike, instrumented

_BATCH = 256


class Reference:
    """What inactive parts contribute.

    Attributes:
        name: Its name in results and on the command line.
        words: What inactive parts contribute, in words.
        paired: Whether each sample has one row of values of its own; else there are as many rows as
            donors, and each sample is run with every one.
        columns: Those of the table that it was made from, if there are any.
        x: The donors, if it reads any.
    """

    name = ""
    words = ""
    paired = False
    columns: tuple[str, ...] = ()
    x: Any = None

    def check(self, im: InstrumentedModel) -> None:
        """Raise an error of `errors` if the reference does not fit a model."""

    def values(self, im: InstrumentedModel, x: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the values of operations, `(donors, *shape)` float32, for samples `x`."""
        raise NotImplementedError


class Mean(Reference):
    """Inactive parts contribute their mean over data.

    Args:
        means: The model's `Profile`, or operation → mean `(*operation shape)`.
    """

    name = "mean"
    words = "their mean values"

    def __init__(self, means: Any) -> None:
        self._profile = means if hasattr(means, "check_model") else None
        values = means if self._profile is None else means.means
        if not isinstance(values, Mapping):
            raise InvalidArgumentError(
                f"Mean needs a Profile, or a dict of means. Received: {type(means).__name__}"
            )
        self._means = values
        self.columns = getattr(means, "columns", ())

    def check(self, im: InstrumentedModel) -> None:
        """Raise ProfileMismatchError if the profile belongs to a different model."""
        if self._profile is not None:
            self._profile.check_model(im)

    def values(self, im: InstrumentedModel, x: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the means, `(1, *shape)` float32."""
        for name in names:
            if name not in self._means or np.shape(self._means[name]) != im[name].shape:
                raise ProfileMismatchError(
                    f"The means have no value of shape {im[name].shape} for operation '{name}' of "
                    f"model '{im.model.name}'. Pass the profile of this model."
                )
        return {name: np.asarray(self._means[name], np.float32)[None] for name in names}


class Zero(Reference):
    """Inactive parts contribute 0; biases are unchanged."""

    name = "zero"
    words = "zero"

    def values(self, im: InstrumentedModel, x: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return zeros, `(1, *shape)` float32."""
        return {name: np.zeros((1, *im[name].shape), np.float32) for name in names}


class Samples(Reference):
    """Inactive parts have the values that they have for other samples, the donors.

    Each sample is run once with every donor.

    Args:
        x: The donors `(donors, *input_shape)`, in any form of `DataLike`.
    """

    name = "samples"
    words = "their values for other samples"

    def __init__(self, x: DataLike) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def values(self, im: InstrumentedModel, x: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the donors' values, `(donors, *shape)` float32."""
        return values_of(im, im.check(self.x), names)


class Weights(Reference):
    """Inactive weights and synapses have the weights of another version of the model.

    Inactive neurons, channels, heads and inputs have the other version's values for the sample.

    Args:
        model: The other version, of the same architecture.
    """

    name = "weights"
    words = "what they do in the other version"
    paired = True

    def __init__(self, model: ModelLike) -> None:
        self.im = instrumented(model)
        self.columns = self.im.columns

    def check(self, im: InstrumentedModel) -> None:
        """Raise InvalidArgumentError if the versions have different variables or operations."""
        both = (im, self.im)
        for what, versions in (
            ("variable", [[(v.path, v.shape) for v in one.functional.variables] for one in both]),
            ("operation", [[(o.name, o.shape) for o in one.operations] for one in both]),
        ):
            for (name, shape), (twin, of_twin) in zip_longest(*versions, fillvalue=("nothing", ())):
                if shape != of_twin:
                    raise InvalidArgumentError(
                        f"The versions have different architectures: {what} '{name}' of shape "
                        f"{shape} is '{twin}' of shape {of_twin} in '{self.im.model.name}'."
                    )

    @cached_property
    def variables(self) -> list[np.ndarray]:
        """The other version's variables, in the order of the model's."""
        return [keras.ops.convert_to_numpy(v) for v in self.im.functional.variables]

    def values(self, im: InstrumentedModel, x: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the values in the other version, `(samples, *shape)` float32."""
        twins = dict(zip((o.name for o in im.operations), self.im.operations, strict=True))
        values = values_of(self.im, x, [twins[name].name for name in names])
        return {name: values[twins[name].name] for name in names}


def as_reference(reference: Any, profile: Any = None) -> Reference:
    """Return a reference given as one, by name, or as a profile (its means).

    The names are "mean" and "samples" (the profile's rows), which need a profile, and "zero".
    Raises InvalidArgumentError for anything else.
    """
    if isinstance(reference, Reference):
        return reference
    if hasattr(reference, "check_model"):
        return Mean(reference)
    if isinstance(reference, str) and reference == "zero":
        return Zero()
    if isinstance(reference, str) and reference in ("mean", "samples"):
        if profile is None:
            raise InvalidArgumentError(
                f"The reference '{reference}' needs the model's profile: pass the Profile itself."
            )
        if reference == "mean":
            return Mean(profile)
        if not profile.rows:
            raise InvalidArgumentError(
                "The profile keeps no samples: profile the model again, or pass Samples(x)."
            )
        return Samples(profile.rows)
    raise InvalidArgumentError(
        "A reference must be 'mean', 'zero', 'samples', a Profile, or one of Mean(profile), "
        f"Zero(), Samples(x), Weights(model). Received: {repr(reference)[:80]}"
    )


def values_of(im: InstrumentedModel, x: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the values of operations for all samples, an array or `Inputs` that was checked."""
    parts = [im.forward(x[i : i + _BATCH], names, i) for i in range(0, len(x), _BATCH)]
    return {name: np.concatenate([part[name] for part in parts]) for name in names}
