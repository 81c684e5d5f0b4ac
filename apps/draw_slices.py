"""Draw slices of normal and adversarial inputs: the NNSlicer paper's Figure 2.

python apps/draw_slices.py
python apps/draw_slices.py --model resnet10 --dataset cifar10
"""

from nnslicer_tf.experiments.application import add_experiment, application, main
from nnslicer_tf.experiments.nnslicer.settings import DrawingSettings

app = application(__doc__)
add_experiment(app, "draw", DrawingSettings, "nnslicer_tf.experiments.nnslicer.drawing:draw")

if __name__ == "__main__":
    main(app)
