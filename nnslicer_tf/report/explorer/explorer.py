"""`explore`: a view of slices, as a Jupyter widget or an HTML file."""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from nnslicer_tf._files import atomic_path, check_writable
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.report.explorer import page
from nnslicer_tf.report.explorer.document import Document, Source
from nnslicer_tf.report.explorer.shown import Exhibit, check_fits, exhibits, with_operations

if TYPE_CHECKING:
    from typing import Any as ProfileLike


class Explorer:
    """A view of slices, made by `explore`; notebooks show it as a widget.

    Attributes:
        title: Title of the page.
        data: The packed document; see `nnslicer_tf.report.explorer.packing`.
    """

    def __init__(self, title: str, data: bytes) -> None:
        self.title = title
        self.data = data

    def save(self, path: str | os.PathLike) -> None:
        """Write the view as one HTML file, which needs neither a server nor a network.

        Raises:
            InvalidArgumentError: if nothing can be written there.
        """
        check_writable(path)
        with atomic_path(path) as temporary:
            temporary.write_text(self.html(), encoding="utf-8")

    def html(self) -> str:
        """Return the view as one HTML page."""
        return page.html(self.title, self.data)

    @cached_property
    def widget(self) -> Any:
        """The Jupyter widget; its `selection` holds the current selection.

        Raises:
            ImportError: if anywidget is not installed.
        """
        return page.widget(self.data)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        shown, metadata = self.widget._repr_mimebundle_(**options)
        return {**shown, "text/plain": repr(self)}, metadata

    def __repr__(self) -> str:
        return f"Explorer({self.title!r}, {len(self.data) / 1e6:.2f} MB of data)"


def explore(
    slices: Any,
    im: InstrumentedModel | Mapping[str, InstrumentedModel],
    x: DataLike | Mapping[str, DataLike] | None = None,
    *,
    profile: "ProfileLike | Mapping[str, ProfileLike] | None" = None,
    classes: Sequence[str] = (),
    words: Sequence[Sequence[str]] = (),
    title: str = "",
    progress: bool = True,
) -> Explorer:
    """Return an interactive view of slices or similar results.

    It shows the network with the share of each operation in the slice, every operation's neurons,
    why a synapse is in the slice or not, the input, and the model's prediction with only the slice
    and without it; two slices can be compared.

    Args:
        slices: A `Slice`, a `SliceSet`, or a mapping from operations, layers or kernels to arrays
            of marks or scores (critical neurons, coverage, pruning masks); or several of these, as
            a mapping by name or as a list.
        im: The model; or models with equal operations, by the names of the slices.
        x: The samples that were sliced, in order, `(samples, *input_shape)`; or several by the
            names of the slices. Without it, neither inputs nor values are shown.
        profile: The profile with which the slices were made, for the distance of every value from
            its mean; or several by the names of the slices. Without it, no local values are
            shown.
        classes: Names of the classes, in order.
        words: For text models, the tokens of each sample.
        title: Title of the view; the model's name by default.
        progress: Show a progress bar.

    Raises:
        InvalidArgumentError: if names, shapes or numbers of samples are inconsistent.
        ProfileMismatchError: if a slice or a profile belongs to a different model.
        InputShapeError, NonFiniteActivationError: for bad data.
    """
    found = []
    arrays: dict[int, np.ndarray] = {}
    for exhibit in exhibits(slices):
        source = _source(exhibit.name, im, x, profile, arrays)
        exhibit = with_operations(exhibit, source.im)
        check_fits(exhibit, source.im)
        found.append((exhibit, source))
    for exhibit, source in found:
        _check_samples(exhibit, source.x)
    _check_alike([source.im for _, source in found])
    _check_words(words, found)
    title = title or f"Slices of {found[0][1].im.model.name}"
    return Explorer(title, Document(title, classes, words, progress).pack(found))


def _source(name: str, im: Any, x: Any, profile: Any, arrays: dict[int, np.ndarray]) -> Source:
    """Return the model, the samples and the means that belong to a name.

    Args:
        name: Name of an exhibit.
        im: The models.
        x: The samples.
        profile: The profiles.
        arrays: Samples that were read before, so that exhibits with the same samples share them.
    """
    model = _by_name("im", im, name)
    if not isinstance(model, InstrumentedModel):
        raise InvalidArgumentError(
            f"im must be an InstrumentedModel, or several by name. Received: {type(model).__name__}"
        )
    means = None
    if profile is not None:
        own = _by_name("profile", profile, name)
        own.check_model(model)
        means = own.means
    given = None if x is None else _by_name("x", x, name)
    if given is not None and id(given) not in arrays:
        arrays[id(given)] = np.concatenate(list(model.samples(given).batches(256)))
    return Source(model, None if given is None else arrays[id(given)], means)


def _by_name(what: str, given: Any, name: str) -> Any:
    if not isinstance(given, Mapping):
        return given
    if name not in given:
        raise InvalidArgumentError(
            f"{what} has nothing for '{name}'. It has {', '.join(map(str, given)) or 'nothing'}."
        )
    return given[name]


def _check_samples(exhibit: Exhibit, x: np.ndarray | None) -> None:
    expected = len(exhibit.parts) if exhibit.each else exhibit.parts[0].samples
    if x is not None and expected and len(x) != expected:
        raise InvalidArgumentError(
            f"'{exhibit.name}' is of {expected} samples; x has {len(x)}. Give the samples that "
            "were sliced, in order."
        )


def _check_alike(models: Sequence[InstrumentedModel]) -> None:
    for im in models[1:]:
        if _structure(im) != _structure(models[0]):
            raise InvalidArgumentError(
                f"'{im.model.name}' and '{models[0].model.name}' have different operations; only "
                "models of equal operations and shapes can be shown together."
            )


def _structure(im: InstrumentedModel) -> list[tuple]:
    return [(o.name, o.kind, o.shape, o.inputs) for o in im.operations]


def _check_words(words: Sequence, found: Sequence[tuple[Exhibit, Source]]) -> None:
    for exhibit, _ in found:
        if words and exhibit.each and len(words) != len(exhibit.parts):
            raise InvalidArgumentError(
                f"words has the tokens of {len(words)} samples; '{exhibit.name}' is of "
                f"{len(exhibit.parts)}."
            )
