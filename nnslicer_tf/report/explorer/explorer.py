"""`explore`: a view of slices, as a Jupyter widget or an HTML file.

The libraries d3 (ISC) and dagre (MIT) are embedded; the page loads nothing.
"""

import base64
import os
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from html import escape
from pathlib import Path
from typing import Any

import keras
import numpy as np

from nnslicer_tf._checks import check_texts, names_in_order
from nnslicer_tf._files import as_path, atomic_path
from nnslicer_tf.errors import InvalidArgumentError, SeveralInputsError
from nnslicer_tf.instrument import InstrumentedModel, instrumented
from nnslicer_tf.instrument.data import DataLike, as_named, column_names, one_order
from nnslicer_tf.report.explorer.document import Document
from nnslicer_tf.report.explorer.exhibits import named_results, read_exhibit
from nnslicer_tf.report.words import words_of


class Explorer:
    """A view of slices, made by `explore`; notebooks show it as a widget.

    Attributes:
        title: Title of the page.
        data: The packed document; see `nnslicer_tf.report.explorer.packing`.
    """

    def __init__(self, title: str, data: bytes) -> None:
        self.title, self.data = title, data

    def save(self, path: str | os.PathLike) -> None:
        """Write the view as one HTML file, which needs neither a server nor a network."""
        if as_path(path).suffix.lower() not in (".html", ".htm"):
            raise InvalidArgumentError(f"Views are saved as .html files. Received: '{path}'")
        with atomic_path(path) as temporary:
            temporary.write_text(self.html(), encoding="utf-8")

    def html(self) -> str:
        """Return the view as one HTML page."""
        return _read("explorer.html").format(
            title=escape(self.title),
            style=_read("explorer.css"),
            script=_script(),
            data=base64.b64encode(self.data).decode(),
        )

    @cached_property
    def widget(self) -> Any:
        """The Jupyter widget, by anywidget; its `selection` holds the current selection."""
        try:
            import anywidget
            import traitlets
        except ImportError as error:
            raise ImportError(
                "The widget needs anywidget: pip install anywidget. Without it, write a page that "
                "any browser opens: view.save('slices.html')."
            ) from error

        class ExplorerWidget(anywidget.AnyWidget):
            _esm = _script() + _read("widget.js")
            _css = _read("explorer.css")
            data = traitlets.Bytes().tag(sync=True)
            selection = traitlets.Dict().tag(sync=True)

        return ExplorerWidget(data=self.data)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle, metadata = self.widget._repr_mimebundle_(**options)
        return {**bundle, "text/plain": repr(self)}, metadata

    def __repr__(self) -> str:
        return f"Explorer({self.title!r}, {len(self.data) / 1e6:.2f} MB of data)"


def explore(
    slices: Any,
    im: InstrumentedModel | keras.Model | Mapping[str, InstrumentedModel | keras.Model],
    x: DataLike | Mapping[str, DataLike] | None = None,
    *,
    profile: Any = None,
    classes: Sequence[str] = (),
    columns: Sequence[str] = (),
    words: Sequence[Sequence[str]] = (),
    title: str = "",
    progress: bool = True,
) -> Explorer:
    """Return an interactive view of slices or similar results.

    It shows the input, the network with its neurons and synapses, and answers with a slice alone
    and without it; two slices can be compared. Neurons of very large operations are not shown.

    Args:
        slices: A `Slice`, a `SliceSet`, `DecisiveSlices` (with their certificates), or a mapping
            from operations, layers or kernels to arrays of marks or scores (critical neurons,
            coverage, pruning masks); or several of these, as a mapping by name or as a list. Or an
            `Explanation`, whose sample, means and names are taken from it.
        im: The model, instrumented or not; or models with equal operations, by the slices' names.
        x: The samples that were sliced, in order, `(samples, *input_shape)`; or several by the
            names of the slices. Without it, neither inputs nor values are shown.
        profile: The `Profile` of the slices, for every value's distance from its mean; or several
            by the names of the slices. Without it, no local values are shown.
        classes: Names of the classes, in order.
        columns: Names of a table's columns; by default those of x, if it has any.
        words: For text models, the words of each sample, as `Slicer.explain` accepts them.
        title: Title of the view; the model's name by default.
        progress: Show a progress bar.

    Raises InvalidArgumentError if names, shapes or numbers of samples are inconsistent;
    ProfileMismatchError if a slice or a profile belongs to a different model; InputShapeError or
    NonFiniteActivationError for bad data.
    """
    means, explanation, given = None, slices if hasattr(slices, "contrast") else None, words
    if explanation is not None:  # it has all that is needed
        x = np.asarray(slices.sample)[None] if x is None else x
        classes = slices.classes if len(classes) == 0 else classes
        columns = slices.columns if len(columns) == 0 else columns
        words = [slices.words] if len(words) == 0 and slices.words else words
        means, title = slices.means, title or f"Why {slices.question}?"
    classes = names_in_order("classes", classes)
    columns = names_in_order("columns", columns)
    if any(isinstance(sample, str) for sample in words):
        raise InvalidArgumentError("words must have a list of the words of each sample.")
    models: dict[tuple, InstrumentedModel] = {}
    arrays: dict[int, np.ndarray] = {}  # exhibits with the same samples share them
    exhibits = []
    for name, one in named_results(slices).items():
        own_im = instrumented(model := _by_name("im", im, name))
        if len(own_im.input_operations) > 1:
            raise SeveralInputsError(
                f"Model '{own_im.model.name}' has {len(own_im.input_operations)} "
                "inputs; slices of models with one can be explored. Use slicer.explain."
            )
        data = _by_name("x", x, name)
        if profile is not None:
            own = _by_name("profile", profile, name)
            if not hasattr(own, "means"):
                raise InvalidArgumentError(f"profile must be a Profile. Received: {own!r}")
            own.check_model(own_im)
            own_im, means = own_im.with_columns(own.columns or own_im.columns), own.means
        of_slices = tuple(getattr(one, "info", {}).get("columns", ()))
        own_im = own_im.with_columns(own_im.columns or of_slices)
        table: Any = None if data is None else as_named(data, columns, own_im.columns)
        own_im = own_im.named_by(table)
        own_im = models.setdefault((id(model), own_im.columns), own_im)
        if data is not None and id(data) not in arrays:
            arrays[id(data)] = np.concatenate(list(own_im.samples(table).batches(256)))
        samples = None if data is None else arrays[id(data)]
        exhibits.append(read_exhibit(name, one, own_im, samples, means, classes))
        if len(given) and samples is not None:
            if len(given) != len(samples):
                raise InvalidArgumentError(f"words has {len(given)} lists, x {len(samples)} rows.")
            tokens = samples.reshape(len(samples), -1)
            if own_im.graph.vocabulary(own_im.input_operation) is None:  # one for each vector
                tokens = np.ones((len(samples), samples.shape[1] if samples.ndim == 3 else 0))
            words = [words_of(own_im, *pair) for pair in zip(given, tokens, strict=True)]
            check_texts("words", (word for sample in words for word in sample))

    first = exhibits[0].im
    known = one_order(*(one.columns for one in models.values()))  # the page shows only one
    if arrays and (not columns or sorted(columns) == sorted(known)):
        columns = known or column_names(data)
    structure = [(o.name, o.kind, o.shape, o.inputs) for o in first.operations]
    for other in models.values():
        if [(o.name, o.kind, o.shape, o.inputs) for o in other.operations] != structure:
            raise InvalidArgumentError(
                f"'{other.model.name}' and '{first.model.name}' have different operations; only "
                "models of equal operations and shapes can be shown together."
            )
    inputs = first[first.input_operation].shape
    if columns and (len(inputs) != 1 or len(columns) != inputs[0]):
        raise InvalidArgumentError(f"columns has {len(columns)} names; a sample has shape {inputs}")
    title = title or f"Slices of {first.model.name}"
    if not first.classes.is_number:
        names_in_order("classes", classes, first.classes.count)
    check_texts("title", [title])
    document = Document(exhibits, title, classes, columns, words, explanation, progress)
    return Explorer(title, document.pack())


def _by_name(what: str, given: Any, name: str) -> Any:
    if not isinstance(given, Mapping):
        return given
    if name not in given:
        raise InvalidArgumentError(
            f"{what} must have an entry for each of the slices, such as '{name}', or be one for "
            f"all. Received entries for: {', '.join(map(str, given)) or 'nothing'}."
        )
    return given[name]


_STATIC = Path(__file__).parent / "static"


@cache
def _script() -> str:
    """Return a JavaScript module that defines `explore(root, bytes, selected)`."""
    # Each library becomes an expression whose value it is, whatever module loader is present.
    libraries = "\n".join(
        f"const {name} = (function () {{ /* The licence is in {name}.LICENSE of the package. */ "
        "const module = { exports: {} }; const exports = module.exports; let define;\n"
        f"{_read(f'{name}.min.js')}\nreturn {value}; }})();"
        for name, value in (("d3", "module.exports"), ("dagre", "dagre"))
    )
    # In a page, a script ends at the first "</script", even inside a string.
    return f"{libraries}\n{_read('explorer.js')}".replace("</script", "<\\/script")


@cache
def _read(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")
