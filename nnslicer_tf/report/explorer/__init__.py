"""The explorer: an interactive view of slices, as a Jupyter widget and as one HTML file.

`explore` gathers what is to be seen into a packed document (`packing`, a format with a
version), `page` puts it into a page. Everything that is drawn is drawn by the page's own script,
`static/explorer.js`, from that document alone.
"""

from nnslicer_tf.report.explorer.explorer import Explorer, explore
from nnslicer_tf.report.explorer.packing import FORMAT, Packer, unpack

__all__ = ["FORMAT", "Explorer", "Packer", "explore", "unpack"]
