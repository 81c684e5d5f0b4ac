"""Expose the logits of a model that ends in probabilities, since attacks work on logits."""

import keras

from nnslicer_tf.errors import InvalidArgumentError


def logits_model(model: keras.Model) -> keras.Model:
    """Return `model` with its final softmax removed; `model` itself if it has none.

    The new model shares all layers but the last, whose weights are copied; `model` is
    not changed.

    Args:
        model: A built functional or sequential model with one output (N, classes), or
            any other model that outputs logits.

    Raises:
        InvalidArgumentError: if the model ends in a sigmoid or log-softmax, or has
            several outputs.
    """
    if not getattr(model, "outputs", None):
        return model
    if len(model.outputs) != 1:
        raise InvalidArgumentError(
            f"Attacks need a model with one output, '{model.name}' has {len(model.outputs)}."
        )
    history = model.outputs[0]._keras_history
    layer = history.operation
    name = _final_activation(layer)
    if name not in ("softmax", "sigmoid", "logsoftmax"):
        return model
    if name != "softmax":
        raise InvalidArgumentError(
            f"Attacks need logits for each class: '{model.name}' ends in {name} (layer "
            f"'{layer.name}'). Give a model that ends in logits or in a softmax."
        )
    (before,) = layer._inbound_nodes[history.node_index].input_tensors
    return keras.Model(model.inputs, _without_softmax(layer, before), name=model.name)


def _without_softmax(layer: keras.Operation, before: keras.KerasTensor) -> keras.KerasTensor:
    """Return what `layer` computes from `before`, without its softmax."""
    if isinstance(layer, keras.Model):
        return logits_model(layer)(before)
    if not getattr(layer, "weights", None):
        return before
    last = type(layer).from_config({**layer.get_config(), "activation": "linear"})
    logits = last(before)
    last.set_weights(layer.get_weights())
    return logits


def _final_activation(layer: keras.Operation) -> str:
    """Return the name of the activation function of a model's last operation."""
    if isinstance(layer, keras.Model):
        return _final_activation(layer.outputs[0]._keras_history.operation)
    if isinstance(layer, keras.layers.Layer):
        activation = getattr(layer, "activation", None)
        if activation is not None:
            return getattr(activation, "__name__", "").replace("_", "")
    return type(layer).__name__.lower()
