"""Draw slices of a vision transformer: contributions over patches and heads.

python apps/draw_patches.py
"""

from reproduction.application import add_experiment, application, main
from reproduction.nnslicer.settings import PatchSettings

app = application(__doc__)
add_experiment(app, "draw", PatchSettings, "reproduction.nnslicer.patches:draw")

if __name__ == "__main__":
    main(app)
