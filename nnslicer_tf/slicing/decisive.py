"""`DecisiveSlices`: the smallest slices found that keep a model's answers, with certificates."""

import math
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nnslicer_tf._checks import counted, names_in_order
from nnslicer_tf._files import Archive, read_archive, write_archive
from nnslicer_tf._numerics import parted
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.instrument.layout import LEVELS
from nnslicer_tf.slicing.slice import Slice

if TYPE_CHECKING:  # saved slices can be displayed without Keras
    import pandas as pd

_HOW = ("alone", "removed")
_FORMAT = "nnslicer_tf decisive slices 3"
# What a file must have for its slices to be shown.
_COLUMNS = {
    *("answer", "probability", "empty answer", "probability of empty answer", "size", "share"),
    *(f"{what} with slice {how}" for what in ("answer", "probability") for how in _HOW),
    *("divergence", "kept", "found"),
}
_INFO = {
    *("level", "reference", "inactive", "max_share", "min_probability", "max_divergence", "kind"),
    *("together", "number", "others", "names", "fingerprint"),
}


class DecisiveSlices(ShownAsTable):
    """The smallest slices found that keep a model's answers, with what was tested.

    Slices are sets: `slices[0] & slices[1]`; each is a `Slice`.

    Attributes:
        shapes: Name of a kernel (level "synapse") or operation → shape of its units.
        members: For each slice, the indices of its units, over all `shapes` in C order.
        contributions: For each slice, what each of its units does with only the slice active: the
            derivative of the answer's score by the unit's mask, float32.
        certificate: Column → one value per sample, measured by running the model: "answer" (a
            class, 1 or 0 for a label or for two classes that are compared, or a number) and its
            "probability", both also with the slice alone and with the slice removed; "probability
            with nothing active" (of the answer), "empty answer" (with nothing active) and
            "probability of empty answer"; "divergence" (Kullback-Leibler, of the output with the
            slice alone from the whole model's); "size" and "share" of the slice; "kept" (whether it
            keeps the answer as required), "needed" (whether the model gives another one without
            it), "minimal" (every unit was tried alone, and none can go), "found" (kept, as needed
            as required, and no larger than `max_share`; with `at_least` smaller than the whole
            model), "empty kept" (whether nothing active does, too); "donors kept" (with several
            donors, the share for which it keeps the answer); "scope donors" (other samples, which
            no search has seen), "scope kept" (the share of these for which it keeps the answer when
            inactive units take their values; with `at_least` as required, else the answer alone),
            "scope bound" (the lower bound of that share, with 95 % confidence, of Clopper and
            Pearson; with `at_least` that share if its test was passed); for a class against others,
            "unseen samples", "unseen kept" and "unseen bound" of the class, and "others", "others
            claimed" and "claims bound" of samples of other classes; "other classes asked" of the
            same search (not the one that nothing active gives), and "given" by a mask of at most
            this size that a search met; "passes" (forward).
        info: level, reference, and the other arguments; "untested": why the scope was not tested;
            "others": for each slice, the other answers asked, and whether each was given; "donors":
            number of donors; "kind": what an answer is; "names": the label, or the two classes,
            that a binary answer is about; "labels": whether the classes are independent labels, of
            which the most probable is the answer.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        members: Sequence[np.ndarray],
        contributions: Sequence[np.ndarray],
        certificate: Mapping[str, np.ndarray],
        info: Mapping[str, Any],
    ) -> None:
        self.shapes = dict(shapes)
        self.members = list(members)
        self.contributions = list(contributions)
        self.certificate = dict(certificate)
        self.info = dict(info)

    def __len__(self) -> int:
        return len(self.certificate["answer"])

    def __getitem__(self, index: int) -> Slice:
        """Return the slice of one sample, whose values are the contributions."""
        place = self._place(index)
        # A member that does nothing is a member, too.
        found = self.contributions[place].astype(np.float32)
        values = np.where(found == 0, np.finfo(np.float32).tiny, found)
        arrays = self._arrays(place, values, np.float32)
        kept = ("level", "reference", "fingerprint", "own_code", "columns")
        info = {name: self.info[name] for name in kept if name in self.info}
        info["outputs"] = "predicted" if self.info["kind"] == "class" else self.info["kind"]
        info["samples"] = len(self) if self.info["together"] else 1
        by_synapse = self.info["level"] == "synapse"
        return Slice({} if by_synapse else arrays, arrays if by_synapse else {}, info)

    def _place(self, index: int) -> int:
        """Return the place of a sample's slice; raise IndexError if there is no such sample."""
        index = operator.index(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"There are {counted(len(self), 'slice')}. Received index {index}.")
        return 0 if self.info["together"] else index % len(self)

    def __iter__(self) -> Iterator[Slice]:
        return (self[i] for i in range(len(self)))

    def masks(self, index: int = 0) -> dict[str, np.ndarray]:
        """Return which units are in the slice of a sample: name → bool array."""
        return self._arrays(self._place(index), True, bool)

    def _arrays(self, place: int, values: Any, dtype: Any) -> dict[str, np.ndarray]:
        """Return an array for each of `shapes`, with values at the members of a slice."""
        full = np.zeros(sum(map(math.prod, self.shapes.values())), dtype)
        full[self.members[place]] = values
        return parted(full, self.shapes)

    def to_frame(self) -> "pd.DataFrame":
        """Return the certificate, with one row per sample."""
        import pandas as pd

        return pd.DataFrame(self.certificate).rename_axis("sample").reset_index()

    def summary(self, index: int = 0, classes: Sequence[str] = ()) -> str:
        """Return the certificate of a sample in words.

        Args:
            index: The sample.
            classes: Names of the classes, in order.
        """
        place, classes = self._place(index), names_in_order("classes", classes)
        row = {name: column[index] for name, column in self.certificate.items()}
        number, level = self.info["number"], self.info["level"]

        def called(label: int) -> str:
            return classes[int(label)] if label < len(classes) else f"class {int(label)}"

        def named(answer: Any) -> str:
            if number:
                return f"{answer:.4g}"
            if self.info["kind"] != "binary":
                return called(answer)
            names = [called(label) for label in self.info["names"]]
            if len(names) == 1:
                return names[0] if answer else f"not {names[0]}"
            return " rather than ".join(names if answer else reversed(names))

        def outcome(which: str) -> str:
            answer = row[f"answer with slice {which}"]
            if number:
                return named(answer)
            percent = 100 * row[f"probability with slice {which}"]
            text = f"{named(row['answer'])} with {percent:.1f} %"
            return text if answer == row["answer"] else f"{text} (it answers {named(answer)})"

        unit = "unit" if level == "head" else level  # a head, or a channel outside of attention
        units = f"{counted(int(row['size']), unit)} ({100 * row['share']:.2f} %)"
        bounds = "".join(
            f" with {phrase} {self.info[name]} ({name})"
            for name, phrase in (
                ("min_probability", "a probability of at least"),
                ("max_divergence", "a divergence of at most"),
            )
            if self.info[name] is not None and not number
        ).replace(") with", ") and")
        answer = f"the answer {named(row['answer'])}{bounds}"
        if not row["kept"] and row["share"] == 1:
            digits = 3 if row["probability"] < 0.999 else 9
            return (
                f"No slice was found that keeps {answer}. The whole model gives it a probability "
                f"of {row['probability']:.{digits}g}; pass a lower min_probability."
            )
        verb = "gives" if number else "answers"
        text = (
            f"With only the slice active, {units}, the model {verb} {outcome('alone')}; with the "
            f"slice removed, {outcome('removed')}. Inactive {unit}s contribute "
            f"{self.info['inactive']}; with none active, the model {verb} "
            f"{named(row['empty answer'])}"
        )
        if number:
            text += f". The whole model gives {named(row['answer'])}."
        else:
            text += f" with {100 * row['probability of empty answer']:.1f} %."
        is_kept = row.get("empty kept", not bounds and row["empty answer"] == row["answer"])
        if not number and is_kept:
            text += (
                " The model gives this answer without any of them, so the slice says little: "
                "Slicer.decisive asks for more with min_probability or max_divergence."
            )
        if self.info.get("minimal") and row["minimal"] and row["size"] > 1:
            text += " Without any single one of its units, the answer is lost."
        # Why it does not count as found.
        if not row["kept"]:
            of_all = "the one slice of all samples" if self.info["together"] else "the slice"
            text += f" Not found, because {of_all} does not keep {answer}."
        elif self.info.get("needed") and not row["needed"]:
            text += " Not found: no slice the search tried is both sufficient and needed."
        elif self.info.get("at_least") and row["share"] == 1:
            text += (
                f" Not found: no fewer {unit}s passed the test with other samples' values. A "
                "larger background, or another `rng`, may find a slice."
            )
        elif not row["found"]:
            text += (
                f" Not found, because it has more than {100 * self.info['max_share']:g} % of the "
                f"{unit}s; a larger max_share counts it."
            )
        if row.get("scope donors") == 0:
            text += " It was not tested with other samples' values: all that were given equal it."
        elif "scope kept" in row:
            text += (
                f" With the values of {row['scope donors']} other samples in the inactive "
                f"{unit}s, the answer is kept for {100 * row['scope kept']:.0f} % (at least "
                f"{int(100 * row['scope bound'])} % with 95 % confidence)."
            )
        elif self.info.get("untested"):
            text += f" It was not tested with other samples' values: {self.info['untested']}."
        if "unseen kept" in row:
            text += (
                f" Of {row['unseen samples']} samples of the class that the search has not seen, "
                f"it keeps {100 * row['unseen kept']:.1f} %, and with 95 % confidence at least "
                f"{100 * row['unseen bound']:g} % of all; of {row['others']} others it claims "
                f"{100 * row['others claimed']:.1f} %, and at most {100 * row['claims bound']:g} %."
            )
        if self.info["together"]:
            kept = int(self.certificate["kept"].sum())
            text += (
                f" It is one slice for {len(self)} samples, and keeps the answers of {kept}; "
                f"{'values' if number else 'probabilities'} are those of sample {index}."
            )
        if self.info.get("labels"):
            text += " The labels are independent; only the most probable one was kept."
        others = self.info["others"][place]
        given = [named(label) for label, is_given in others if is_given]
        if given:
            text += (
                f" The same search for {' and for '.join(given)} also succeeded, with no more "
                f"{unit}s: this slice is not specific."
            )
        elif others:
            asked = ", ".join(named(label) for label, _ in others)
            text += (
                f" The same search for {len(others)} other "
                f"{'class' if len(others) == 1 else 'classes'} ({asked}) found no slice as small."
            )
        return text

    def save(self, path: str | os.PathLike) -> None:
        """Write the slices to an .npz file, replacing an older one only when it is complete."""
        write_archive(path, _FORMAT, *self.to_archive())

    def to_archive(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the header and the arrays of an archive of the slices."""
        header = {
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "info": self.info,
            "columns": list(self.certificate),
        }
        arrays = {f"column{i}": values for i, values in enumerate(self.certificate.values())}
        arrays["members"] = np.concatenate([np.zeros(0, np.int64), *self.members])
        arrays["contributions"] = np.concatenate([np.zeros(0, np.float32), *self.contributions])
        arrays["ends"] = np.cumsum([len(m) for m in self.members])
        return header, arrays

    @classmethod
    def load(cls, path: str | os.PathLike) -> "DecisiveSlices":
        """Read slices.

        Raises MissingFileError if there is no such file; CorruptFileError if the file is damaged,
        or holds something else.
        """
        with read_archive(path, _FORMAT, "file of decisive slices") as file:
            return cls.from_archive(file)

    @classmethod
    def from_archive(cls, file: Archive) -> "DecisiveSlices":
        """Return the slices of an archive; CorruptFileError if they are damaged."""
        shapes = file.shapes("shapes")
        ends = file.array("ends", np.int64, "slices")
        found = file.array("members", np.int64, "members")
        values = file.array("contributions", np.float32, "members")
        steps = np.diff(ends, prepend=0)
        fits = (steps >= 0).all() and steps.sum() == len(found)
        file.check(fits, "its 'ends' do not divide the members into slices")
        members, contributions = (np.split(a, ends[:-1])[: len(ends)] for a in (found, values))
        # The probabilities of a number are NaN.
        certificate = file.named("columns", "column", np.generic, "samples", finite=False)
        info = file.value("info", dict)
        missing = [*(_COLUMNS - {*certificate}), *(_INFO - {*info})]
        file.check(not missing, f"it has no {missing}")
        number, shares = info["number"], ("kept", "bound", "claimed")
        for name, column in certificate.items():
            is_answer = name.startswith(("answer", "empty answer"))
            is_share = name.startswith(("probability", "share")) or name.endswith(shares)
            low = -np.inf if is_answer and number else -1e-6  # but for rounding
            high = 1 + 1e-6 if is_share else np.finfo(float).max
            fits = (column >= low) & (column <= high) | (number and np.isnan(column))
            fits &= number or not is_answer or (column % 1 == 0) & (column < 2**31)
            file.check(fits.all(), f"{name!r} has impossible values")
        file.check(info["level"] in LEVELS, f"its level is {info['level']!r}")
        samples, units = len(certificate["answer"]), sum(map(math.prod, shapes.values()))
        slices = min(samples, 1) if info["together"] else samples
        file.check(len(members) == len(info["others"]) == slices, "it lacks slices")
        sizes, column = np.resize([*map(len, members)], samples), certificate["size"]
        fits = np.allclose(certificate["share"] * units, sizes) and (column == sizes).all()
        file.check(fits and units < 1 << 40, "its sizes and shares are not those of its slices")
        for k, part in enumerate(members):
            fits = (np.diff(part, prepend=-1) > 0).all() and part[-1:].sum() < max(units, 1)
            file.check(fits, f"the members of slice {k} are not among its {units:,} units")
        loaded = cls(shapes, members, contributions, certificate, info)
        for k in range(min(samples, 100)):
            loaded.summary(k)  # what is still damaged raises an error here, not when it is used
        return loaded

    @classmethod
    def join(cls, parts: Sequence["DecisiveSlices"]) -> "DecisiveSlices":
        """Return the slices of several searches with the same settings, in their order."""
        first = parts[0]
        members = [one for part in parts for one in part.members]
        contributions = [one for part in parts for one in part.contributions]
        certificate = {
            name: np.concatenate([part.certificate[name] for part in parts])
            for name in first.certificate
        }
        info = first.info | {"others": [one for part in parts for one in part.info["others"]]}
        return cls(first.shapes, members, contributions, certificate, info)

    def __repr__(self) -> str:
        found = int(self.certificate["found"].sum())
        share = float(np.median(self.certificate["share"])) if len(self) else 0.0
        return (
            f"DecisiveSlices({found} of {len(self)} found, median share {share:.2%} of the "
            f"{self.info['level']}s, reference={self.info['reference']!r})"
        )
