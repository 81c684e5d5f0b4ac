"""Expose the logits of a model that ends in probabilities, since attacks work on logits."""

import keras

from nnslicer_tf.errors import InputShapeError, InvalidArgumentError, UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel


def logits_model(model: keras.Model, input_shape: tuple[int, ...] | None = None) -> keras.Model:
    """Return `model` without its final softmax, log-softmax or sigmoid; itself if it has none.

    The new model shares all weights. For one sigmoid with the logit z, it has the logits 0 and z
    of two classes. A model that cannot be instrumented is returned as it is.

    Args:
        model: A model with one output (N, classes).
        input_shape: Shape of one input, if the model does not specify it.

    Raises:
        InvalidArgumentError: if the model has several outputs, or several sigmoids.
    """
    if len(getattr(model, "outputs", None) or ["one"]) != 1:
        raise InvalidArgumentError(
            f"Attacks need a model with one output, '{model.name}' has {len(model.outputs)}."
        )
    try:
        im = InstrumentedModel(model, input_shape)
    except (UnsupportedLayerError, InputShapeError):
        return model
    if im.classes.is_multi_label:
        raise InvalidArgumentError(
            f"Attacks need classes that exclude each other: '{model.name}' ends in "
            f"{im.classes.count} sigmoids. Give a model that ends in logits or in a softmax."
        )
    if im.logit_operation in im.output_operations:
        return model
    inputs = keras.Input(im.input_shape, dtype=im.functional.inputs[0].dtype)
    logits = im.compute(inputs, [im.logit_operation])[im.logit_operation]
    if im.classes.is_binary:
        logits = keras.ops.concatenate([keras.ops.zeros_like(logits), logits], axis=-1)
    elif logits.shape[1:] != model.outputs[0].shape[1:]:
        logits = keras.ops.reshape(logits, (-1, *model.outputs[0].shape[1:]))
    return keras.Model(inputs, logits, name=model.name)
