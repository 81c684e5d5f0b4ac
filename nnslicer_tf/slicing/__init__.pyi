from .class_profiles import ClassProfiles, ClassSlicer
from .criterion import Criterion
from .decisive import DecisiveSlices
from .explanation import Comparison, Explanation
from .profile import Profile
from .rules import Neurons, Rule, register_rule
from .slice import Slice
from .slice_set import SliceSet
from .slicer import Slicer
from .smooth import SmoothSlices

__all__ = [
    "ClassProfiles",
    "ClassSlicer",
    "Comparison",
    "Criterion",
    "DecisiveSlices",
    "Explanation",
    "Neurons",
    "Profile",
    "Rule",
    "Slice",
    "SliceSet",
    "Slicer",
    "SmoothSlices",
    "register_rule",
]
