"""Draw slices of normal and adversarial inputs: the NNSlicer paper's Figure 2.

python apps/draw_slices.py
python apps/draw_slices.py --model resnet10 --dataset cifar10
"""

from reproduction.application import experiments, main

app = experiments(__doc__, "nnslicer", ("draw", "DrawingSettings", "drawing:draw"))

if __name__ == "__main__":
    main(app)
