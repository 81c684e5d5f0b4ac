"""For users of shap: `DeepExplainer`, and `shap.Explanation`s of results. shap is an extra."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnslicer_tf._checks import check_count, check_name
from nnslicer_tf._environment import require, track
from nnslicer_tf.attributions.background import Background
from nnslicer_tf.attributions.methods import deeplift_by_row
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.data import DataLike, column_names, columns_of
from nnslicer_tf.instrument.inputs import arrays_of
from nnslicer_tf.instrument.model import ModelLike, instrumented
from nnslicer_tf.instrument.target import Target

_ORDERS: dict[str, Any] = {"max": np.negative, "min": np.positive, "max_abs": lambda v: -np.abs(v)}
_TOLERANCE = 1e-2  # of sums, relative to the largest output; shap's


class DeepExplainer:
    """`shap.DeepExplainer`'s calls, for every model that can be instrumented.

        explainer = DeepExplainer(model, x_train[:100])
        explainer.shap_values(x)       # (samples, *input shape, *output shape)
        shap.plots.waterfall(explainer(x)[0, :, 3])

    Values are DeepLIFT's, means over the background: for each sample they add up to the model's
    output, as it is (probabilities, if it ends in a softmax), less `expected_value`. Shapley values
    of tables, and explanations of logits, are those of `Slicer.explain`.

    Args:
        model: The model.
        data: The background, in any form of `DataLike`; 100 samples are usual.
        output: Name of the output; the first by default.
        progress: Show a progress bar.

    Attributes:
        expected_value: Mean output over the background, `(*output shape)` float64.
    """

    def __init__(
        self, model: ModelLike, data: DataLike, output: str | None = None, progress: bool = True
    ) -> None:
        self.im: InstrumentedModel = instrumented(model, data).named_by(data)
        self.data, self.progress = self.im.check(data), progress
        self._operation = self.im.output_operation_of(output)
        self.expected_value = self._outputs(self.data).mean(axis=0)

    def _outputs(self, x: Any) -> np.ndarray:
        return self.im.capture(x, of=[self._operation])[self._operation].astype(np.float64)

    def shap_values(
        self,
        X: DataLike,
        ranked_outputs: int | None = None,
        output_rank_order: str = "max",
        check_additivity: bool = True,
    ) -> Any:
        """Return the values of samples, `(samples, *input shape, *output shape)` float64.

        Args:
            X: Samples.
            ranked_outputs: Number of outputs of each sample to explain, in place of all.
            output_rank_order: Which ones: "max", "min" or "max_abs".
            check_additivity: Raise unless the values add up.

        Returns an array; for several inputs, a list of these. With `ranked_outputs`, a pair: the
        last axis are the ranks, and the indices of their outputs follow, `(samples, ranks)`.

        Raises InvalidArgumentError if an argument is out of range, or values do not add up.
        """
        x, shape = self.im.check(X), self.im[self._operation].shape
        check_name("output_rank_order", output_rank_order, _ORDERS)
        outputs = self._outputs(x).reshape(len(x), -1)
        order = np.argsort(_ORDERS[output_rank_order](outputs), axis=1, kind="stable")
        if ranked_outputs is None:
            order = np.sort(order, axis=1)
        else:
            check_count("ranked_outputs", ranked_outputs)
            order = order[:, :ranked_outputs]
        values = [np.zeros((*part.shape, order.shape[1])) for part in arrays_of(x)]
        scale = max(1.0, float(np.abs(outputs).max()))
        for i, neurons in enumerate(track(order, "Contributions", progress=self.progress)):
            for rank, neuron in enumerate(neurons):
                target = Target(self._operation, (int(neuron),), self._operation)
                found = deeplift_by_row(self.im, x[i], self.data, target)
                parts = [*found.values()] if isinstance(found, dict) else [found]
                for whole, part in zip(values, parts, strict=True):
                    whole[i, ..., rank] = part.mean(axis=0)
                total = sum(part.mean(axis=0).sum() for part in parts)
                change = outputs[i, neuron] - self.expected_value.ravel()[neuron]
                if check_additivity and abs(total - change) > _TOLERANCE * scale:
                    raise InvalidArgumentError(
                        f"The values of sample {i}, output {neuron}, add up to {total:.4g}; its "
                        f"output differs from the background's mean by {change:.4g}. Texts must be "
                        "padded like the background. check_additivity=False leaves this check out."
                    )
        if ranked_outputs is None:
            values = [whole.reshape(*whole.shape[:-1], *shape) for whole in values]
        single = values if len(values) > 1 else values[0]
        return single if ranked_outputs is None else (single, order)

    def __call__(self, X: DataLike) -> Any:
        """Return a `shap.Explanation` of samples; for several inputs, a dict of them by name.

        Raises MissingPackageError if shap is not installed; other errors as in `shap_values`.
        """
        names, values, x = list(self.im.input_shapes), self.shap_values(X), self.im.check(X)
        base = np.broadcast_to(self.expected_value, (len(x), *self.expected_value.shape))
        if len(names) > 1:
            return {n: _explanation(v, base, x[n]) for n, v in zip(names, values, strict=True)}
        return _explanation(values, base, x, self.im.columns or column_names(X))


def as_shap(
    contributions: Any, sample: Any, base: float, background: Background | None, names: Sequence
) -> Any:
    """Return one sample's contributions as a `shap.Explanation`; see `Explanation.to_shap`."""
    if background is not None and background.names:  # features, each of some columns
        values = background.to_frame().sort_index()["value"].to_numpy()
        return _explanation(background.values, base, values, background.names)
    if isinstance(contributions, Mapping):
        parts = contributions.items()
        return {n: _explanation(v, base, sample[n], columns_of(names, n)) for n, v in parts}
    fits = len(names) == np.size(sample) and np.ndim(sample) < 2
    return _explanation(contributions, base, sample, names if fits else ())


def _explanation(values: Any, base: Any, data: Any, names: Sequence[str] = ()) -> Any:
    shap = require("shap", "An explanation in the form of shap needs")
    return shap.Explanation(values, base, data=data, feature_names=list(names) or None)
