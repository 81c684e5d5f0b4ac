"""Find the parts of a network that cause wrong outputs, and repair them (NNSlicer, section 7).

- `suspicious` scores neurons and synapses by how much wrong outputs are due to them;
- `repair` changes few weights so that given inputs, or segments, are provably right;
- `static_slice` finds what can reach an output, whatever the input is;
- `compare_layers` finds which layers and channels make a compressed model deviate from its
  original, and `recipe` which layers a quantiser should leave in floating point.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
