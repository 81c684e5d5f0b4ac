"""Named data sets of labelled sentences, and the vocabulary that turns words into numbers.

SST-2 (Socher et al., EMNLP 2013; GLUE, Wang et al., ICLR 2019) comes from GLUE's files `train.tsv`
and `dev.tsv` in `GLUE_DIR/SST-2` or `GLUE_DIR/sst2` if that environment variable is set, otherwise
from TensorFlow Datasets as `glue/sst2`. Spaces separate its lower-case words and punctuation.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnslicer_tf._checks import as_array, check_name, counted
from nnslicer_tf.datasets.sources import split_indices, tfds_split
from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError

NAMES = ("sst2",)
LENGTH = 52
"""Number of words in SST-2's longest sentence."""

PADDING, UNKNOWN = 0, 1
"""Numbers for padding, and for words that are not in the vocabulary."""


@dataclass(frozen=True, repr=False)
class Sentences:
    """Sentences `text` and their class indices `y`, `(N,)` int64; for SST-2, 1 is positive."""

    text: tuple[str, ...]
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.text)

    def __repr__(self) -> str:
        return f"Sentences({len(self):,}, first: {self.text[0]!r})"


class Vocabulary:
    """The words that a model knows: `words[number]`, where 0 is padding and 1 an unknown word."""

    def __init__(self, words: Iterable[str]) -> None:
        self.words = ("", "[unknown]", *words)
        self._numbers = {word: number for number, word in enumerate(self.words)}

    def encode(self, sentences: str | Sequence[str], length: int = LENGTH) -> np.ndarray:
        """Return the words' numbers `(sentences, length)` int32, padded with 0 at the end.

        Case is ignored, and so are words after `length`. Raises InvalidArgumentError if a sentence
        has no words or is not a string.
        """
        sentences = [sentences] if isinstance(sentences, str) else list(sentences)
        if not all(isinstance(sentence, str) for sentence in sentences):
            raise InvalidArgumentError("Sentences must be a string or a sequence of strings.")
        numbers = np.full((len(sentences), length), PADDING, np.int32)
        for row, sentence in zip(numbers, sentences, strict=True):
            words = sentence.lower().split()[:length]
            if not words:
                raise InvalidArgumentError("A sentence has no words.")
            row[: len(words)] = [self._numbers.get(word, UNKNOWN) for word in words]
        return numbers

    def decode(self, numbers: np.ndarray) -> list[str]:
        """Return the words of one encoded sentence `(length,)`, without padding.

        Raises InvalidArgumentError if a number does not belong to a word.
        """
        numbers = as_array(numbers)
        is_row = numbers.ndim == 1 and numbers.dtype.kind in "iuf"
        if not is_row or not ((numbers >= 0) & (numbers < len(self))).all():
            raise InvalidArgumentError(f"Tokens are 0 … {len(self) - 1}. Received: {numbers}")
        return [self.words[int(number)] for number in numbers if number != PADDING]

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        return f"Vocabulary({counted(len(self), 'word')})"


def vocabulary(name: str = "sst2") -> Vocabulary:
    """Return the vocabulary of the zoo's models: SST-2's 13,998 most frequent words."""
    check_name("set of sentences", name, NAMES)
    text = Path(__file__).with_name(f"{name}.txt").read_text(encoding="utf-8")
    return Vocabulary(text.rstrip("\n").split("\n"))


def load(name: str = "sst2", split: str = "train") -> Sentences:
    """Load a named data set of labelled sentences.

    Args:
        name: One of `NAMES`.
        split: `"train"` (67,349 sentences and phrases) or `"test"`, GLUE's development set (872
            sentences), as its test set has no labels; or parts in TFDS syntax, such as
            `"train[:1000]"`.

    Raises InvalidArgumentError for an unknown name or split; DatasetUnavailableError if the
    sentences are neither stored here nor downloadable; CorruptFileError if a file of GLUE does not
    have the expected format.
    """
    check_name("set of sentences", name, NAMES)
    if not os.environ.get("GLUE_DIR"):
        rows = tfds_split(f"glue/{name}", split.replace("test", "validation"), supervised=False)
        pairs = [(row["sentence"].decode(), row["label"]) for row in rows.as_numpy_iterator()]
    else:
        folder = Path(os.environ["GLUE_DIR"])
        folder = folder / "SST-2" if (folder / "SST-2").is_dir() else folder / name
        train, test = _read(folder / "train.tsv"), _read(folder / "dev.tsv")
        pairs = train + test
        indices = {"train": np.arange(len(train)), "test": np.arange(len(train), len(pairs))}
        pairs = [pairs[i] for i in split_indices(split, indices)]
    text = tuple(sentence.strip() for sentence, _ in pairs)
    return Sentences(text, np.array([label for _, label in pairs], np.int64))


def _read(path: Path) -> list[tuple[str, int]]:
    try:
        lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")[1:]
    except OSError as error:
        raise InvalidArgumentError(
            f"GLUE_DIR has no readable '{path.parent.name}/{path.name}': {error}."
        ) from error
    parts = [line.rsplit("\t", 1) for line in lines]
    if not all(len(part) == 2 and part[1] in ("0", "1") for part in parts):
        raise CorruptFileError(f"'{path}': every line must be a sentence, a tab, and 0 or 1.")
    return [(sentence, int(label)) for sentence, label in parts]
