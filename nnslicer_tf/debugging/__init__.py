"""Find the parts of a network that cause wrong outputs, and mend them (NNSlicer, section 7).

- `suspicious` scores neurons and synapses by how much they cause wrong outputs;
- `mend` changes only the most suspicious channels;
- `compare_layers` finds the layers and channels by which a compressed model deviates from its
  original, and `recipe` the layers that a quantiser should leave in floating point.
"""

from nnslicer_tf import _faces

__getattr__, __dir__, __all__ = _faces.attach(__name__, __file__)
