"""The words of a text, beside the tokens that a model receives."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from nnslicer_tf._checks import of_user
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel


def words_of(im: InstrumentedModel, words: Any, tokens: np.ndarray) -> Sequence[str]:
    """Return a word for each of a text's tokens `(length,)`, or for each that is no padding.

    `words` are what `Slicer.explain` accepts; raises InvalidArgumentError if they do not fit.
    """
    count = len(np.trim_zeros(tokens, "b"))
    # Token 0 in front is padding if the model masks it, else a token.
    masks = any(operation.kind == "mask" for operation in im.operations)
    front = int(np.argmax(tokens != 0)) if masks and count == len(tokens) > 0 else 0
    text = None
    if isinstance(words, tuple) and len(words) == 2 and hasattr(words[0], "get_vocabulary"):
        words, text = words
    if hasattr(words, "id_to_token"):
        with of_user("words"):
            return [words.id_to_token(int(i)) for i in tokens]
    if text is not None and not isinstance(text, str):
        raise InvalidArgumentError(f"words=(vectoriser, text) needs a string. Received: {text!r}")
    if hasattr(words, "get_vocabulary"):
        of_text = np.trim_zeros(tokens if text is None else np.ravel(words([text])), "b")
        vocabulary, last = words.get_vocabulary(), tokens.max(initial=0)
        if last >= len(vocabulary) or not np.array_equal(of_text, tokens[:count]):
            of = "a text of this vectoriser" if text is None else f"the text {text!r}"
            raise InvalidArgumentError(
                f"The sample does not consist of the tokens of {of}. Pass vectoriser([text]), "
                "of the vectoriser that made the training data."
            )
        return [vocabulary[int(i)] for i in tokens[:count]]
    found: list[Any] = [None]
    with suppress(TypeError):  # also of an array without axes
        words = words.numpy() if hasattr(words, "numpy") else words
        found = [word.decode() if isinstance(word, bytes) else word for word in words]
    if not isinstance(words, bytes) and not all(isinstance(word, str) for word in found):
        raise InvalidArgumentError(f"words must be a sequence of words. Received: {words!r}")
    is_padding = [str(word).lower() in ("", "[pad]", "<pad>") for word in found]
    is_marked = is_padding == [not front <= i < count for i in range(len(tokens))]
    fits = is_marked or len(found) == count - front
    if found and (isinstance(words, (str, bytes, set)) or not fits):
        takes = f"it has {count - front}" if len(tokens) else "the model takes no tokens"
        raise InvalidArgumentError(
            f"words must have one word for each token of the sample; {takes}. Received: "
            f"{len(found)} {type(words).__name__}. Split the text as the model's vectoriser does, "
            "or pass the vectoriser and the text: words=(vectoriser, text)."
        )
    return found if is_marked or not found else [""] * front + found
