from .class_profiles import ClassProfiles
from .criterion import Criterion
from .decisive import DecisiveSlices
from .explanation import Explanation
from .profile import Profile
from .slice import Slice
from .slice_set import SliceSet
from .slicer import Slicer
from .smooth import SmoothSlices

__all__ = [
    "ClassProfiles",
    "Criterion",
    "DecisiveSlices",
    "Explanation",
    "Profile",
    "Slice",
    "SliceSet",
    "Slicer",
    "SmoothSlices",
]
