from .criterion import Criterion
from .decisive import DecisiveSlices
from .explanation import Explanation
from .patching import Patching, patch, patch_path
from .profile import Profile
from .slice import Slice
from .slice_set import SliceSet
from .slicer import Slicer

__all__ = [
    "Criterion",
    "DecisiveSlices",
    "Explanation",
    "Patching",
    "Profile",
    "Slice",
    "SliceSet",
    "Slicer",
    "patch",
    "patch_path",
]
