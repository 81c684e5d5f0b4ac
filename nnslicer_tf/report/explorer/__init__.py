"""The explorer: an interactive view of slices, as a Jupyter widget and as one HTML file.

`explore` collects the data to show in a packed document (`packing`, a versioned format), and `page`
puts it into a page. The page's own script, `static/explorer.js`, draws everything from that
document alone.
"""

from nnslicer_tf.report.explorer.explorer import Explorer, explore
from nnslicer_tf.report.explorer.packing import FORMAT, Packer, unpack

__all__ = ["FORMAT", "Explorer", "Packer", "explore", "unpack"]
