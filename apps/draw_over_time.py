"""Draw slices of a recurrent network: contributions over time.

python apps/draw_over_time.py
"""

from reproduction.application import add_experiment, application, main
from reproduction.nnslicer.settings import OverTimeSettings

app = application(__doc__)
add_experiment(app, "draw", OverTimeSettings, "reproduction.nnslicer.over_time:draw")

if __name__ == "__main__":
    main(app)
