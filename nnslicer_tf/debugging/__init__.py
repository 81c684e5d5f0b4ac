"""Find the parts of a network that cause wrong outputs, and repair them (NNSlicer, section 7).

- `suspicious` scores neurons and synapses by how much they cause wrong outputs;
- `repair` changes few weights so that given inputs, or segments, are provably correct;
- `compare_layers` finds the layers and channels by which a compressed model deviates from its
  original, and `recipe` the layers that a quantiser should leave in floating point.
"""

from nnslicer_tf import _faces

__getattr__, __dir__, __all__ = _faces.attach(__name__, __file__)
