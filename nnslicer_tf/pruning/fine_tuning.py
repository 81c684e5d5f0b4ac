"""Short training of a pruned or stolen model, with labels or another model's outputs.

Training with labels follows NNSlicer, sections 6.2.2 and 6.3.2; training with outputs follows
Hinton, Vinyals and Dean, "Distilling the knowledge in a neural network", 2015.
"""

from collections.abc import Mapping, Sequence

import keras
import numpy as np

from nnslicer_tf import _training
from nnslicer_tf._checks import ArrayLike, as_class_indices, as_generator, check_count
from nnslicer_tf._numerics import OutputClasses
from nnslicer_tf.errors import InvalidArgumentError, SeveralInputsError
from nnslicer_tf.instrument import DataLike, InstrumentedModel, ModelLike, instrumented
from nnslicer_tf.instrument.data import Samples, one_order
from nnslicer_tf.instrument.functional import as_functional, structure_of


def fine_tune(
    model: ModelLike,
    x: DataLike,
    y: ArrayLike | Mapping[str, ArrayLike],
    epochs: int = 1,
    *,
    learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 1e-3,
    batch_size: int = 128,
    rng: int | np.random.Generator = 0,
    progress: bool = True,
    from_logits: bool = True,
    free: Sequence[tuple[keras.Variable, np.ndarray]] | None = None,
) -> keras.Model:
    """Train a model in place with Adam, and return the Keras model; masks stay in effect.

    Classes are trained by their cross-entropy, those of maps at each position, numbers by their
    mean squared error; the losses of several outputs are added.

    Args:
        model: The model. Of its outputs `(samples, classes)` one stands for two classes; what maps,
            numbers and several outputs are, `InstrumentedModel` recognises, or its `task` says.
        x: Samples `(samples, *input_shape)`.
        y: Their classes, `(samples,)` integers, or one-hot; of a map, at each position; or numbers.
            Of several outputs, a dict by name.
        epochs: Number of passes over the samples.
        learning_rate: Learning rate of Adam, or its schedule.
        batch_size: Samples per step; an incomplete last batch is left out, except an only one.
        rng: Draws the order of the samples, and dropout.
        progress: Show a progress bar.
        from_logits: Whether the outputs are logits; only of a single output `(samples, classes)`.
        free: Variables that may change, each with a bool array of its shape, true where they may;
            the rest is frozen, except statistics of normalisation. By default all may change.

    Raises InvalidArgumentError if there are no samples, or labels do not fit them or the outputs;
    InputShapeError if the samples do not fit the model, or its input shape is not known;
    SeveralInputsError if the model has several inputs.
    """
    given = model
    model, functional, x = _opened(model, x, batch_size)
    generator = as_generator(rng)
    shapes = [tuple(tensor.shape[1:]) for tensor in functional.outputs]
    is_vector = len(shapes) == 1 and len(shapes[0]) == 1
    if is_vector and not isinstance(y, Mapping) and as_class_indices(y).dtype.kind in "iu":
        task = "binary" if shapes[0] == (1,) else "multiclass"
        kinds = [OutputClasses("" if from_logits else "distribution", shapes[0], task=task)]
        truth = [kinds[0].truth(y, len(x))]
    else:
        im = instrumented(given, x)
        given_y = y if isinstance(y, Mapping) else {im.output_names[0]: y}
        _, labels = im.labelled(x, given_y, by_output=True)
        missing = [name for name in im.output_names if name not in labels]
        if missing:
            raise InvalidArgumentError(
                f"y must be a dict with the right answers for each output of '{model.name}': "
                f"{', '.join(im.output_names)}. Missing: {', '.join(missing)}"
            )
        kinds = [im.classes_of(name) for name in im.output_names]
        truth = [labels[name] for name in im.output_names]
    structure = structure_of(functional, "output")
    losses = keras.tree.pack_sequence_as(structure, [_training.loss_of(kind) for kind in kinds])
    optimizer = _training.adam(learning_rate)
    if free is not None:
        own = {id(variable): tuple(variable.shape) for variable in model.trainable_variables}
        for variable, mask in free:
            if own.pop(id(variable), None) != np.shape(mask):
                raise InvalidArgumentError(
                    "free must name trainable variables of the model, once each, with a bool array "
                    f"of its shape. Received: {variable!r}, and an array of {np.shape(mask)}"
                )
        optimizer = _training.selective_optimizer(optimizer, {id(v): mask for v, mask in free})
    _training.compile_loss(model, optimizer, losses)
    _training.draw_dropout_seeds(model, generator)

    def step(rows: np.ndarray, _: object) -> float:
        targets = keras.tree.pack_sequence_as(structure, [part[rows] for part in truth])
        # The total loss; those of several outputs follow it.
        return float(np.ravel(model.train_on_batch(x[rows], targets))[0])

    batch, options = min(batch_size, len(x)), {"drop_last": True, "progress": progress}
    _training.train_epochs(step, len(x), epochs, batch, generator, **options)
    return model


def imitate(
    model: ModelLike,
    teacher: ModelLike,
    x: DataLike,
    epochs: int = 1,
    *,
    learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 1e-3,
    batch_size: int = 128,
    rng: int | np.random.Generator = 0,
    progress: bool = True,
) -> keras.Model:
    """Train a model in place to reproduce a teacher's outputs, without labels, and return it.

    Adam minimises the mean squared difference of the outputs. Each sample is blended with up to one
    half of another, which enlarges small sets (after Zhang et al., "mixup", ICLR 2018); tokens are
    not. Arguments and errors are those of `fine_tune`; both models have equal inputs and outputs.
    """
    columns = one_order(*(getattr(one, "columns", ()) for one in (model, teacher)))
    model, functional, x = _opened(model, x, batch_size, columns)
    teacher, of_teacher, _ = _opened(teacher, x, batch_size)
    if functional.output_shape != of_teacher.output_shape:
        raise InvalidArgumentError(
            "Model and teacher must have outputs of the same shape. Received: "
            f"{functional.output_shape}, {of_teacher.output_shape}"
        )
    generator = as_generator(rng)
    _training.draw_dropout_seeds(model, generator)
    _training.compile_loss(model, _training.adam(learning_rate), "mse")
    embeddings = (keras.layers.Embedding, keras.layers.ReversibleEmbedding)
    layers = functional._flatten_layers(include_self=False)
    takes_tokens = "int" in keras.backend.standardize_dtype(functional.inputs[0].dtype)
    takes_tokens = takes_tokens or any(isinstance(layer, embeddings) for layer in layers)

    def step(rows: np.ndarray, generator: np.random.Generator) -> float:
        batch = x[rows]
        if not takes_tokens:  # blend each sample with a share, from 0 to 1/2, of another
            share = generator.uniform(0, 0.5, (len(batch), *[1] * (batch.ndim - 1)))
            share = share.astype(batch.dtype)
            batch = (1 - share) * batch + share * batch[generator.permutation(len(batch))]
        return float(np.ravel(model.train_on_batch(batch, teacher.predict_on_batch(batch)))[0])

    batch, options = min(batch_size, len(x)), {"drop_last": True, "progress": progress}
    _training.train_epochs(step, len(x), epochs, batch, generator, **options)
    return model


def _opened(
    model: ModelLike, x: DataLike, batch_size: int, columns: Sequence[str] = ()
) -> tuple[keras.Model, keras.Model, np.ndarray]:
    """Return the Keras model, a functional one with the same layers, and samples that fit it."""
    check_count("batch_size", batch_size)
    columns = columns or getattr(model, "columns", ())
    if isinstance(model, InstrumentedModel):
        model, functional = model.model, model.functional
    else:
        functional = as_functional(model, None)
    if len(functional.inputs) > 1:
        raise SeveralInputsError(
            f"Model '{model.name}' has {len(functional.inputs)} inputs; this training takes models "
            "with one. Join the inputs in a wrapping model, which splits one tensor into them."
        )
    shape = tuple(functional.inputs[0].shape[1:])
    of_samples = tuple(getattr(x, "shape", ()))[1:]
    if None in shape and len(of_samples) == len(shape):  # axes without a size accept any
        shape = tuple(b if a is None else a for a, b in zip(shape, of_samples, strict=True))
    return model, functional, Samples(x, shape, columns=columns).array()
