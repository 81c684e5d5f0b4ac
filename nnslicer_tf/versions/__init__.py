"""Two versions of a model: which answers changed, which changed weights did it, what to take back.

    result = versions.compare(old, new, x, y)      # flipped answers, by class and by layer
    causes = versions.explain_flips(old, new, x)   # for each: the fewest changes that made it
    versions.rank_changes(old, new, x, y)          # which channel's change does most harm
    repair = versions.revert(old, new, x, y)       # the fewest changes to take back
    repair.model.save("repaired.keras")

All three run models between the versions: the old weights plus some of the changes.
"""

from nnslicer_tf import _faces

# Lazy: `__init__.pyi` has the names.
__getattr__, __dir__, __all__ = _faces.attach(__name__, __file__)
