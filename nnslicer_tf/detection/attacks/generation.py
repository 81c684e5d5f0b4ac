"""Generate adversarial examples for a Keras model, in batches, with a cache to resume from.

Works on every backend of Keras, except for the spatial attack. Memory: one batch and the results.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from threading import RLock
from typing import Any

import keras
import numpy as np
import pandas as pd

from nnslicer_tf._checks import ArrayLike, check_labels, check_name, shape_fits
from nnslicer_tf._environment import require, track
from nnslicer_tf._files import as_path
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.datasets import Normalisation
from nnslicer_tf.detection.attacks.table import ATTACKS, AttackSpec
from nnslicer_tf.engine import Store
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError, UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.backend import compiled_function
from nnslicer_tf.instrument.fingerprint import model_identity
from nnslicer_tf.instrument.outputs import check_exclusive
from nnslicer_tf.instrument.plausibility import check_logits

_TURN = RLock()  # held by the attack that uses the process's random generators
_TENSORFLOW_ONLY = ("foolbox.attacks:SpatialAttack",)


@dataclass(frozen=True, repr=False)
class AdversarialExamples(ShownAsTable):
    """The results of an attack on some inputs.

    Attributes:
        attack: The attack with its parameters.
        x: (N, height, width, channels) float32 in [0, 1], the attacked inputs; where the attack
            failed, its last attempt or the input itself.
        success: (N,) bool: the model was right on the input and is wrong on `x`.
        predicted: (N,) int64, the model's classes on `x`.
    """

    attack: AttackSpec
    x: np.ndarray
    success: np.ndarray
    predicted: np.ndarray

    def to_frame(self) -> pd.DataFrame:
        """Return one row per input: whether it misleads, and the model's class."""
        frame = pd.DataFrame({"success": self.success, "predicted": self.predicted})
        return frame.rename_axis("input").reset_index()

    def __repr__(self) -> str:
        count = f"{int(self.success.sum())} of {len(self.success)}"
        return f"AdversarialExamples({self.attack.name}: {count} mislead the model)"


def generate(
    model: keras.Model,
    attack: str | AttackSpec,
    x: np.ndarray,
    y: ArrayLike,
    *,
    normalise: Normalisation | None = None,
    rng: int = 0,
    cache: str | os.PathLike | None = None,
    batch_size: int = 64,
    progress: bool = True,
) -> AdversarialExamples:
    """Attack inputs that the model classifies correctly; leave the others unchanged.

    Args:
        model: A Keras model that ends in logits or a softmax (N, classes).
        attack: A name of `ATTACKS`, or an `AttackSpec`.
        x: (N, height, width, channels), values in [0, 1].
        y: (N,) integer classes.
        normalise: The normalisation that `model` was trained with, if it takes values outside [0,
            1] (`datasets.normalisation("cifar10", "standard")`); attacks work in [0, 1].
        rng: The seed; each batch's random numbers depend only on it and on the batch. (Foolbox uses
            the process's generators, so threads take turns.)
        cache: A folder for finished batches, by attack, parameters, model, data and seed.
        batch_size: Inputs attacked together.
        progress: Show a progress bar.

    Raises InvalidArgumentError for an unknown attack or one that the backend does not have, data
    outside [0, 1], probability outputs not of a final softmax, or labels that do not fit;
    InputShapeError if x does not have the model's input shape; CorruptFileError if a cached batch
    is damaged.
    """
    if isinstance(attack, str):
        check_name("attack", attack, ATTACKS)
        attack = ATTACKS[attack]
    backend = keras.backend.backend()
    if backend != "tensorflow" and attack.factory in _TENSORFLOW_ONLY:
        raise InvalidArgumentError(
            f"The attack {attack.name} needs KERAS_BACKEND=tensorflow. Keras runs on {backend}."
        )
    x = _checked(model, x)
    network = _Network(logits_function(model, x.shape[1:]), normalise)
    logits = network.logits(x[:batch_size])
    check_logits(logits)
    # eagerpy 0.30 mixes dtypes with a function that NumPy 2 removed: use int64 throughout.
    y = check_labels(y, len(x), logits.shape[1])
    store = None
    if cache is not None:
        run = {
            "attack": asdict(attack),
            "model": model_identity(model),
            "data": hashlib.sha256(x.tobytes() + y.tobytes()).hexdigest(),
            "mean": None if normalise is None else normalise.mean.tolist(),
            "std": None if normalise is None else normalise.std.tolist(),
            "rng": rng,
            "batch_size": batch_size,
        }
        if backend != "tensorflow":  # which alone made the files that there are
            run["backend"] = backend
        text = json.dumps(run, indent=1, sort_keys=True).encode()
        folder = f"{attack.name}-{hashlib.sha256(text).hexdigest()[:16]}"
        store = Store(as_path(cache) / folder, run, "batch of adversarial examples")
    starts = range(0, len(x), batch_size)
    parts = []
    for number, start in enumerate(track(starts, attack.name, len(starts), progress)):
        batch = slice(start, start + batch_size)
        key = f"batch{number:05d}"
        if store is not None and key in store:
            with store.open(key) as file:
                parts.append(file.array("x", np.float32, x[batch].shape))
            continue
        digest = hashlib.sha256(f"{rng} {attack.name} {number}".encode()).digest()
        seed = int.from_bytes(digest[:4], "big")
        parts.append(_attacked(network, attack, x[batch], y[batch], seed))
        if store is not None:
            store.save(key, {}, {"x": parts[-1]})
    attacked = np.concatenate(parts)
    predicted = network.predict(attacked, batch_size)
    success = (network.predict(x, batch_size) == y) & (predicted != y)
    return AdversarialExamples(attack, attacked, success, predicted)


def logits_function(
    model: keras.Model, input_shape: tuple[int, ...] | None = None
) -> Callable[[Any], Any]:
    """Return a function from inputs to logits, the values before a softmax, log-softmax or sigmoid.

    One sigmoid with logit z has the logits 0 and z. Models that cannot be instrumented are called
    as they are; several outputs or sigmoids raise InvalidArgumentError. Some need `input_shape`.
    """
    if len(getattr(model, "outputs", None) or ["one"]) != 1:
        raise InvalidArgumentError(
            f"Attacks need a model with one output, '{model.name}' has {len(model.outputs)}."
        )
    try:
        im = InstrumentedModel(model, input_shape)
    except (UnsupportedLayerError, InputShapeError):
        return partial(model, training=False)
    name, kind = im.logit_operation, im.classes
    check_exclusive(im)

    def logits(x: Any) -> Any:
        values = im.compute(x, [name])[name]
        if kind.is_binary and kind.final:
            return keras.ops.concatenate([keras.ops.zeros_like(values), values], axis=-1)
        return keras.ops.reshape(values, (-1, *im[im.output_operations[0]].shape))

    return logits


def _checked(model: keras.Model, x: Any) -> np.ndarray:
    x = np.asarray(x, np.float32)
    inputs = getattr(model, "inputs", None) or []  # unknown for a subclassed model
    if len(inputs) > 1:
        raise InvalidArgumentError(f"Attacks need one input, '{model.name}' has {len(inputs)}.")
    if inputs and "float" not in inputs[0].dtype:
        raise InvalidArgumentError(
            f"Attacks need a model of real inputs; '{model.name}' takes {inputs[0].dtype}. Pass "
            "the model of the layers after the conversion."
        )
    if inputs and not shape_fits(x.shape, inputs[0].shape):
        raise InputShapeError(
            f"The model '{model.name}' takes inputs of shape {inputs[0].shape}. "
            f"Received: x of shape {x.shape}"
        )
    if not len(x):
        raise InvalidArgumentError("There is nothing to attack: x is empty.")
    low, high = float(x.min()), float(x.max())
    if not (low >= 0 and high <= 1):
        raise InvalidArgumentError(
            f"Attacks need values in [0, 1]; x has values from {low:g} to {high:g}. Load it with "
            'normalise="unit", and pass the model\'s own normalisation as `normalise`.'
        )
    return x


class _Network:
    """The attacked model as Foolbox models, with its normalisation in front."""

    def __init__(self, function: Callable[[Any], Any], normalise: Normalisation | None):
        # Values in [0, 1] are raw values / maximum.
        mean = 0.0 if normalise is None else normalise.mean / normalise.maximum
        std = 1.0 if normalise is None else normalise.std / normalise.maximum
        mean, std = (keras.ops.convert_to_tensor(v, "float32") for v in (mean, std))

        def logits(inputs: Any) -> Any:
            return function((inputs - mean) / std)

        self._logits = compiled_function(logits)

    def logits(self, x: np.ndarray) -> np.ndarray:
        return keras.ops.convert_to_numpy(self._logits(keras.ops.convert_to_tensor(x, "float32")))

    def predict(self, x: np.ndarray, batch_size: int) -> np.ndarray:
        starts = range(0, len(x), batch_size)
        return np.concatenate([self.logits(x[i : i + batch_size]).argmax(axis=1) for i in starts])

    def foolbox(self, framework: str) -> Any:
        """Return a Foolbox model on `"numpy"` arrays, or on tensors of the backend."""
        foolbox = require("foolbox", "Attacks are made with")
        backend = keras.backend.backend()
        if framework == "numpy":
            return foolbox.NumPyModel(self.logits, bounds=(0, 1), data_format="channels_last")
        if backend == "tensorflow":
            import tensorflow as tf

            device = "/GPU:0" if tf.config.list_physical_devices("GPU") else "/CPU:0"
            return foolbox.TensorFlowModel(self._logits, bounds=(0, 1), device=device)
        if backend == "jax":
            return foolbox.JAXModel(self._logits, bounds=(0, 1))
        import torch

        class Module(torch.nn.Module):
            def forward(module, x: Any) -> Any:
                return self._logits(x)

        device = keras.ops.zeros(()).device
        model = foolbox.PyTorchModel(Module().eval(), bounds=(0, 1), device=device)
        model.data_format = "channels_last"  # Foolbox takes it for granted that it is the other one
        return model


def _attacked(
    network: _Network, spec: AttackSpec, x: np.ndarray, y: np.ndarray, seed: int
) -> np.ndarray:
    """Return one attacked batch; images that cannot be attacked are returned unchanged."""

    def run(spec: AttackSpec, **points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Run one Foolbox attack; return the clipped results and where they succeeded."""
        arrays = {"inputs": x[index], "criterion": y[index], **points}
        if spec.framework != "numpy":
            arrays = {name: keras.ops.convert_to_tensor(one) for name, one in arrays.items()}
        model = network.foolbox(spec.framework)
        _, clipped, success = spec(rng=seed)(model, **arrays, epsilons=spec.epsilon)
        clipped, success = map(keras.ops.convert_to_numpy, (clipped, success))
        return np.array(clipped, np.float32), np.array(success, bool)

    attacked = x.copy()
    index = np.flatnonzero(network.predict(x, len(x)) == y)
    with _foolbox_randomness(seed), warnings.catch_warnings():
        # Foolbox averages over empty queues, and warns of failures that `success` reports.
        warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning)
        warnings.filterwarnings("ignore", ".*failed to draw", UserWarning)
        points = {}
        if spec.start is not None and len(index):
            start, success = run(spec.start)
            index = index[success]
            points = {"starting_points": start[success]}
        if len(index):
            attacked[index], _ = run(spec, **points)
    return np.clip(attacked, 0, 1)


@contextmanager
def _foolbox_randomness(seed: int) -> Iterator[None]:
    """Seed the process's generators, which Foolbox uses, for one thread at a time; restore them."""
    with _TURN, ExitStack() as afterwards:
        afterwards.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002
        np.random.seed(seed)  # noqa: NPY002
        backend = keras.backend.backend()
        if backend == "tensorflow":
            import tensorflow as tf
            from tensorflow.python.eager.context import context

            # The user's sequence goes on where it was, which a seed alone would begin again.
            afterwards.callback(setattr, context(), "_rng", getattr(context(), "_rng", None))
            afterwards.callback(tf.random.set_seed, context()._seed)
            tf.random.set_seed(seed)
        elif backend == "jax":
            import eagerpy
            import jax

            afterwards.callback(setattr, eagerpy.JAXTensor, "key", eagerpy.JAXTensor.key)
            eagerpy.JAXTensor.key = jax.random.PRNGKey(seed)
        else:
            import torch

            afterwards.enter_context(torch.random.fork_rng())
            torch.manual_seed(seed)
        yield
