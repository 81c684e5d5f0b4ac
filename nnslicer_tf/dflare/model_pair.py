"""The two models under test, queried together."""

from collections.abc import Callable, Iterator

import numpy as np

from nnslicer_tf._files import digest
from nnslicer_tf.dflare.classifiers import ModelLike, as_classifier
from nnslicer_tf.dflare.domain import Answers, Domain
from nnslicer_tf.errors import InvalidArgumentError

_CHUNK = 1024
"""Inputs preprocessed and queried at once, so that memory stays bounded."""

Preprocess = Callable[[np.ndarray], np.ndarray]


class ModelPair:
    """An original model and its compressed one.

    Args:
        original: Anything that `as_classifier` takes.
        compressed: Likewise.
        domain: How outputs are checked and compared.
        preprocess: Maps a batch of raw inputs to model inputs; None: the domain's default.
        batch_size: Fixed batch size for Keras models.
    """

    def __init__(
        self,
        original: ModelLike,
        compressed: ModelLike,
        domain: Domain,
        preprocess: Preprocess | None = None,
        batch_size: int = 32,
    ) -> None:
        self.original = as_classifier(original, batch_size)
        self.compressed = as_classifier(compressed, batch_size)
        self.domain = domain
        self.preprocess = domain.as_inputs if preprocess is None else preprocess

    def ask(self, batch: np.ndarray) -> Answers:
        """Query both models with raw inputs `(batch, ...)`.

        Raises:
            InvalidArgumentError: if the outputs differ in size, or the domain rejects them.
        """
        parts = [self._outputs(batch[s : s + _CHUNK]) for s in range(0, len(batch), _CHUNK)]
        original, compressed = (np.concatenate(outputs) for outputs in zip(*parts, strict=True))
        self.domain.check_outputs(original, self.original.resolution, "original")
        self.domain.check_outputs(compressed, self.compressed.resolution, "compressed")
        return self.domain.judge(original, compressed)

    def identity(self, seeds: np.ndarray) -> dict[str, str]:
        """Return what the outputs depend on: the models, and their inputs for the seeds.

        Args:
            seeds: Raw inputs `(seeds, ...)`.
        """

        def inputs() -> Iterator[np.ndarray]:
            for start in range(0, len(seeds), _CHUNK):
                yield np.asarray(self.preprocess(seeds[start : start + _CHUNK]))

        models = [
            classifier.content() or digest(map(classifier.probabilities, inputs()))
            for classifier in (self.original, self.compressed)
        ]
        return {"inputs": digest(inputs()), "models": " ".join(models)}

    def _outputs(self, batch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inputs = np.asarray(self.preprocess(batch))
        original = self.original.probabilities(inputs)
        compressed = self.compressed.probabilities(inputs)
        if original.shape != compressed.shape:
            raise InvalidArgumentError(
                "The two models must give outputs of the same shape. Received: original "
                f"{original.shape}, compressed {compressed.shape}"
            )
        return original, compressed
