"""The kernels that detectors read, and the operations that use them."""

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing import Criterion


def convolutions(im: InstrumentedModel) -> list[str]:
    """Return the kernels of convolutions; if there are none, all kernels but the last."""
    kernels = im.kernels
    found = [name for name, kernel in kernels.items() if len(kernel.shape) > 2]
    found = found or list(kernels)[:-1]
    if not found:
        raise InvalidArgumentError(
            f"'{im.model.name}' has no kernel before the last layer, whose slice tells "
            "nothing but the prediction."
        )
    return found


def operation_of(im: InstrumentedModel, kernel: str) -> str:
    """Return the first operation that uses a kernel."""
    return next(o.name for o in im.operations if getattr(o.params, "name", None) == kernel)


def local_criterion(im: InstrumentedModel, kernel: str) -> Criterion:
    """Return the criterion of a kernel's local slice: all outputs of its layer."""
    name = operation_of(im, kernel)
    return Criterion({name: "all"}, until=name)
