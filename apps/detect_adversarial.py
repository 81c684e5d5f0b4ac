"""Detect adversarial inputs: the NNSlicer paper's Table 4, with our measurements beside it.

python apps/detect_adversarial.py --quick
python apps/detect_adversarial.py --model lenet5 --dataset mnist
python apps/detect_adversarial.py --model resnet10 --dataset cifar10 --methods fused
"""

from nnslicer_tf.experiments.application import add_experiment, application, main
from nnslicer_tf.experiments.nnslicer.settings import DetectionSettings

app = application(__doc__)
add_experiment(
    app, "detect", DetectionSettings, "nnslicer_tf.experiments.nnslicer.detection:detect"
)

if __name__ == "__main__":
    main(app)
