"""Results of searches: a `Deviation`, and a `DeviationSet` for many seeds.

They are saved as compressed `.npz` without pickle, with traces as JSON.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf._checks import check_count, counted
from nnslicer_tf._files import Archive, read_archive, write_archive
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.dflare.domain import NO_LABEL, Answers, Mutation
from nnslicer_tf.dflare.text import word_edits
from nnslicer_tf.errors import InvalidArgumentError

_FORMAT = "nnslicer_tf deviations 1"
_WINDOW = 11  # pixels of the window of the structural similarity
_MAX_CHANGES = 12  # changed values of a table's row that are drawn
_ENDS = ("query_budget", "timeout"), ("found", "already_deviates")  # with a deviation
_KNOWN = {"seeds": "seeds ...", "truth": "seeds", "confidences": "found 2", "apart": "found"}


def structural_similarity(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the SSIM of pairs of images `(N, height, width, channels)` of 0 … 255: 1 if equal.

    The window is that of Wang et al., "Image quality assessment", TIP 2004. Smaller images: NaN.
    """
    import tensorflow as tf

    if min(a.shape[1:3]) < _WINDOW or not len(a):
        return np.full(len(a), np.nan)
    x, y = (tf.constant(images, tf.float64) for images in (a, b))
    return tf.image.ssim(x, y, max_val=255, filter_size=_WINDOW).numpy()


def certainties(answers: Answers) -> dict[str, Any]:
    """Return `confidences` and `apart` of a `DeviationSet`, by both models' answers to it."""
    if (answers.labels == NO_LABEL).any():
        return {"confidences": None, "apart": answers.apart}
    tops = answers.original.max(axis=1), answers.compressed.max(axis=1)
    return {"confidences": np.stack(tops, axis=1), "apart": None}


@dataclass(frozen=True, repr=False)
class Deviation(ShownAsTable):
    """An input on which the compressed model deviates from the original.

    Attributes:
        image: The triggering input, of the seed's shape and dtype.
        queries: Number of inputs put to both models, including the seed.
        seconds: The search's share of the time of all concurrent searches.
        labels: The original's and the compressed model's label; −1 for maps and numbers.
        trace: The mutations from the seed, see `Domain.replay`; None if there is no such chain.
    """

    image: np.ndarray
    queries: int
    seconds: float
    labels: tuple[int, int]
    trace: tuple[Mutation, ...] | None

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per mutation of the trace."""
        return pd.DataFrame([{k: str(v) for k, v in asdict(m).items()} for m in self.trace or ()])

    def __repr__(self) -> str:
        steps = "" if self.trace is None else f", {len(self.trace)} mutations"
        labels = "{} for the original, {} for the compressed model, ".format(*self.labels)
        labels = "" if NO_LABEL in self.labels else labels
        return f"Deviation({labels}{self.queries} queries, {self.seconds:.3g} s{steps})"


@dataclass(frozen=True)
class SearchOutcome:
    """The outcome of the search from one seed."""

    status: str  # `found`, `already_deviates` (the seed itself), `query_budget` or `timeout`
    queries: int  # number of inputs put to both models
    seconds: float  # the search's share of the time of all concurrent searches
    deviation: Deviation | None = None


@dataclass(eq=False, repr=False)
class DeviationSet(ShownAsTable):
    """The outcomes for a batch of seeds, in the seeds' order.

    Args:
        outcomes: One per seed.
        seeds: The seeds `(seeds, ...)`, for distances and figures; None if unknown.
        truth: Their true labels `(seeds,)`, if known.
        confidences: For each deviation found, each model's probability of its own label,
            `(found, 2)`; None if unknown, or for maps and numbers.
        max_distance: The search's limit on the change of a value, which `verify` needs; None: no
            limit. Set it after `load` of a file that lacks it.
        features: Names of a table's columns, if known.
        scale: What the models expect images of 0 … 255 divided by, if known.
        apart: For each deviation found of maps and numbers, how far the two answers are apart, see
            `ModelPair`, `(found,)`; None for others.
    """

    outcomes: Sequence[SearchOutcome]
    seeds: np.ndarray | None = None
    truth: np.ndarray | None = None
    confidences: np.ndarray | None = None
    max_distance: float | None = None
    features: Sequence[str] = ()
    scale: float | None = None
    apart: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.outcomes)

    def __getitem__(self, seed: int) -> SearchOutcome:
        return self.outcomes[seed]

    def __iter__(self) -> Iterator[SearchOutcome]:
        return iter(self.outcomes)

    @property
    def status(self) -> np.ndarray:
        """How each search ended, `(seeds,)` of str."""
        return np.array([outcome.status for outcome in self.outcomes])

    @property
    def queries(self) -> np.ndarray:
        """Queries of each search, `(seeds,) int64`."""
        return np.array([outcome.queries for outcome in self.outcomes], np.int64)

    @property
    def seconds(self) -> np.ndarray:
        """Time of each search, `(seeds,) float64`."""
        return np.array([outcome.seconds for outcome in self.outcomes], np.float64)

    @property
    def found(self) -> np.ndarray:
        """Whether each search found a deviation, `(seeds,) bool`."""
        return self.status == "found"

    @property
    def images(self) -> np.ndarray:
        """The triggering inputs of the successful searches, `(found, ...)`."""
        images = [deviation.image for deviation in self._deviations]
        return np.stack(images) if images else np.empty((0,))

    @property
    def labels(self) -> np.ndarray:
        """The two models' labels on `images`, `(found, 2) int64`."""
        labels = [deviation.labels for deviation in self._deviations]
        return np.array(labels, np.int64).reshape(-1, 2)

    def known_seeds(self) -> np.ndarray:
        """Return the seeds; raise `InvalidArgumentError` if they are unknown."""
        if self.seeds is None:
            raise InvalidArgumentError(
                "These deviations have no seeds: search again, or make the set with "
                "DeviationSet(outcomes, seeds=seeds)."
            )
        return self.seeds

    @property
    def _deviations(self) -> list[Deviation]:
        return [o.deviation for o in self.outcomes if o.status == "found" and o.deviation]

    def _of_found(self) -> dict[str, np.ndarray]:
        """Return what is known of the deviations: confidences or distances, and changes."""
        known = {}
        if self.confidences is not None:
            first, second = self.confidences.T
            known = {"confidence": first, "compressed confidence": second}
        if self.apart is not None:
            known["apart"] = self.apart
        if self.seeds is not None:
            a, b = self.seeds[self.found], self.images
            if _are_sentences(self.seeds):
                known["words"] = np.array([word_edits(*pair) for pair in zip(a, b, strict=True)])
                return known
            change, axes = b.astype(np.float64).reshape(a.shape) - a, tuple(range(1, a.ndim))
            known["L∞"] = np.abs(change).max(axis=axes, initial=0.0)
            known["L2"] = np.sqrt((change**2).sum(axis=axes))
            if a.dtype == np.uint8:
                known["SSIM"] = structural_similarity(a, b)
        return known

    def figure(self, most: int = 6) -> Figure:
        """Draw deviations (seed, mutant, change) of images, signals or rows of a table.

        Args:
            most: Number of deviations to draw; those with the smallest L∞ first.

        Raises InvalidArgumentError if none was found, or the seeds are unknown or sentences.
        """
        if self.seeds is None or not self.found.any():
            raise InvalidArgumentError(
                "There is nothing to draw: no deviation was found, or its seed is unknown."
            )
        if _are_sentences(self.seeds):
            raise InvalidArgumentError(
                "Sentences cannot be drawn: decode `images` and `seeds` with their vocabulary."
            )
        check_count("most", most)
        order = np.argsort(self._of_found()["L∞"], kind="stable")[:most]
        seeds, images = self.seeds[self.found][order], self.images[order]
        rows = self.to_frame()[self.found].iloc[order].to_dict("records")
        scale = np.ptp(self.seeds, axis=0)
        are_images = seeds.ndim == 4
        low, high = (0, 255) if seeds.dtype == np.uint8 else (self.seeds.min(), self.seeds.max())
        figure = Figure(figsize=(6.6, 2.3 * len(rows)), layout="constrained")
        axes = figure.subplots(len(rows), 3 if are_images else 1, squeeze=False)
        models = {"original": "confidence", "compressed": "compressed confidence"}
        for line, seed, image, row in zip(axes, seeds, images, rows, strict=True):
            answers = [
                f"{who}: {row[who]}" + (f" ({row[sure]:.0%})" if sure in row else "")
                for who, sure in models.items()
            ]
            if "apart" in row:
                answers = [f"answers apart by {row['apart']:.3g}"]
            true = f", a {row['true label']}" if "true label" in row else ""
            if are_images:
                for axis, picture in zip(line, (seed, image), strict=False):
                    if picture.dtype == np.uint8 and picture.shape[-1] in (3, 4):
                        axis.imshow(picture)
                    else:  # also spectrograms
                        axis.imshow(picture.mean(axis=-1), cmap="gray", vmin=low, vmax=high)
                change = image.astype(float).mean(axis=-1) - seed.astype(float).mean(axis=-1)
                end = np.abs(change).max() or 1
                line[2].imshow(change, cmap="RdBu", vmin=-end, vmax=end)
                distances = f"L∞ {row['L∞']:.4g}, L2 {row['L2']:.4g}"
                if not np.isnan(row.get("SSIM", np.nan)):
                    distances += f", SSIM {row['SSIM']:.2f}"
                titles = f"seed {row['seed']}{true}", "\n".join(answers), distances
                for axis, title, size in zip(line, titles, (9, 8, 8), strict=True):
                    axis.set_title(title, fontsize=size)
                    axis.set_axis_off()
                continue
            ax = line[0]
            ax.set_title(f"seed {row['seed']}{true}; {', '.join(answers)}", fontsize=8)
            if seeds.ndim > 2 or len(scale) >= 1000:
                ax.plot(seed.reshape(len(seed), -1), color="0.6", linewidth=2)
                ax.plot(image.reshape(len(image), -1), linewidth=0.8)
                continue
            # Bars of the values that changed most, relative to their ranges.
            change = (image - seed) / np.where(scale > 0, scale, 1)
            columns = np.argsort(-np.abs(change), kind="stable")[:_MAX_CHANGES]
            columns = columns[change[columns] != 0][::-1]
            names = [self.features[c] if self.features else f"column {c}" for c in columns]
            labels = [
                f"{n}: {seed[c]:.4g} → {image[c]:.4g}" for n, c in zip(names, columns, strict=True)
            ]
            ax.barh(labels, change[columns], color=np.where(change[columns] > 0, "C0", "C3"))
            ax.axvline(0, color="0.5", linewidth=0.8)
            ax.tick_params(labelsize=7)
        caption = {
            4: "seed, mutant, change (blue: brighter, red: darker)",
            3: "grey: seed; coloured: mutant; over the steps",
            2: "changed values: difference from the seed, as a share of the range in all seeds",
        }[seeds.ndim]
        figure.supxlabel(caption, fontsize=9)
        return figure

    @property
    def success_rate(self) -> float:
        """Deviations found per seed on which the models agreed; NaN without such seeds."""
        valid = self.status != "already_deviates"
        return float(self.found[valid].mean()) if valid.any() else float("nan")

    def summary(self) -> dict[str, float]:
        """Return the metrics of the paper's section 5.2: success rate, time and queries.

        `seeds` are those on which the models agreed; times and queries are of successful searches.
        """
        queries = pd.Series(self.queries[self.found], dtype=float)
        return {
            "seeds": int((self.status != "already_deviates").sum()),
            "success_rate": self.success_rate,
            "mean_seconds": float(pd.Series(self.seconds[self.found]).mean()),
            "mean_queries": float(queries.mean()),
            "median_queries": float(queries.median()),
            "max_queries": float(queries.max()),
            "distinct": len({image.tobytes() for image in self.images}),
        }

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per seed: status, queries, seconds, both models' labels.

        It adds what is known: the true label, the confidences, how far maps or numbers are apart,
        and of the seeds the distances L∞, L2 and SSIM (for images), or the number of edited words.
        """
        labels = [o.deviation.labels if o.deviation else (None, None) for o in self.outcomes]
        columns = {"status": self.status, "queries": self.queries, "seconds": self.seconds}
        for which, name in enumerate(("original", "compressed")):
            labelled = [None if pair[which] == NO_LABEL else pair[which] for pair in labels]
            columns[name] = pd.array(labelled, dtype="Int64")
        if self.truth is not None:
            columns["true label"] = self.truth
        for name, values in self._of_found().items():
            columns[name] = np.full(len(self), np.nan)
            columns[name][self.found] = values
        return pd.DataFrame(columns).rename_axis("seed").reset_index()

    def __repr__(self) -> str:
        queries = pd.Series(self.queries[self.found]).mean()
        found = f"{int(self.found.sum())} found from {counted(len(self), 'seed')}"
        return f"DeviationSet({found}, {queries:.1f} queries on average)"

    def save(self, path: str | os.PathLike) -> None:
        """Write all outcomes to one `.npz` file, atomically."""
        arrays = {n: values for n in _KNOWN if (values := getattr(self, n)) is not None}
        header = {"max_distance": self.max_distance, "features": list(self.features)}
        header |= {"scale": self.scale}
        write_archive(path, _FORMAT, header, {**pack(self.outcomes), **arrays})

    @classmethod
    def load(cls, path: str | os.PathLike) -> "DeviationSet":
        """Read what `save` wrote; raise MissingFileError, or CorruptFileError if it is damaged."""
        with read_archive(path, _FORMAT, "set of deviations") as file:
            outcomes = unpack(file)
            known: dict[str, Any] = {
                name: file.array(name, np.number, _KNOWN[name]) for name in _KNOWN if name in file
            }
            features = file.value("features", list) if "features" in file.header else []
            file.check({*map(type, features)} <= {str}, "its features are not names")
            for name, least in (("max_distance", 0), ("scale", 1e-300)):  # older files have none
                if file.header.get(name) is not None:
                    known[name] = file.value(name, int, float, least=least)
            result = cls(outcomes, **known, features=features)
            count = result.found.sum()
            for name, most in (("confidences", 1.01), ("apart", np.inf)):
                values = known.get(name, np.zeros(count))
                fits = len(values) == count and ((values >= 0) & (values <= most)).all()
                file.check(fits, f"its '{name}' are impossible, or not one for each deviation")
            seeds, images = known.get("seeds", result.images)[:1], result.images[:1]
            file.check(images.size in (0, seeds.size), "its seeds and images differ in shape")
            return result


def _are_sentences(seeds: np.ndarray) -> bool:
    return seeds.ndim == 2 and seeds.dtype.kind in "iu"


def pack(outcomes: Sequence[SearchOutcome]) -> dict[str, np.ndarray]:
    """Return outcomes as the arrays of a `.npz` file, for `unpack`."""
    deviations = [outcome.deviation for outcome in outcomes if outcome.deviation]
    traces = [None if d.trace is None else [asdict(m) for m in d.trace] for d in deviations]
    return {
        "status": np.array([outcome.status for outcome in outcomes], "U16"),
        "queries": np.array([outcome.queries for outcome in outcomes], np.int64),
        "seconds": np.array([outcome.seconds for outcome in outcomes], np.float64),
        "has_deviation": np.array([outcome.deviation is not None for outcome in outcomes], bool),
        "images": np.stack([d.image for d in deviations]) if deviations else np.empty((0,)),
        "labels": np.array([d.labels for d in deviations], np.int64).reshape(-1, 2),
        # Operators may draw NumPy numbers, which JSON does not support.
        "traces": np.array(json.dumps(traces, default=lambda number: number.item())),
    }


def unpack(file: Archive) -> list[SearchOutcome]:
    """Return the outcomes that `pack` wrote; raise `CorruptFileError` if the arrays are others."""
    deviations = zip(
        file.array("images", np.number, "deviations ..."),
        file.array("labels", np.integer, "deviations 2").tolist(),
        json.loads(str(file.array("traces", np.str_, ""))),
        strict=True,
    )
    types = dict(status=np.str_, queries=np.integer, seconds=np.floating, has_deviation=np.bool_)
    columns = (file.array(name, dtype, "seeds").tolist() for name, dtype in types.items())
    outcomes = []
    for status, queries, seconds, has_deviation in zip(*columns, strict=True):
        deviation = None
        fits = status in _ENDS[has_deviation] and min(queries, seconds) >= 0
        if has_deviation:
            image, labels, steps = next(deviations)
            fits &= labels == [NO_LABEL] * 2 or (labels[0] != labels[1] and min(labels) >= 0)
            trace = None if steps is None else tuple(Mutation(**step) for step in steps)
            deviation = Deviation(image, queries, seconds, tuple(labels), trace)
        file.check(fits, f"a search has impossible queries or labels, or the status {status!r}")
        outcomes.append(SearchOutcome(status, queries, seconds, deviation))
    file.check(next(deviations, None) is None, "it has more deviations than seeds that found one")
    return outcomes
