"""Draw slices of normal and adversarial inputs: the NNSlicer paper's Figure 2.

python apps/draw_slices.py
python apps/draw_slices.py --model resnet10 --dataset cifar10
"""

from reproduction.application import add_experiment, application, main
from reproduction.nnslicer.settings import DrawingSettings

app = application(__doc__)
add_experiment(app, "draw", DrawingSettings, "reproduction.nnslicer.drawing:draw")

if __name__ == "__main__":
    main(app)
