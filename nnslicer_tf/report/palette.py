"""Colours that have the same meaning in every picture, and are safe for the colour-blind.

Methods have colours of Okabe and Ito ("Color universal design", 2008), and families of methods have
shades of one of them. Contributions, and the differences of two slices, have the same colours in
static pictures and in the explorer.
"""

RGB = tuple[int, int, int]

POSITIVE: RGB = (31, 90, 180)
NEGATIVE: RGB = (200, 40, 40)
"""Positive and negative contributions."""

FIRST_ONLY: RGB = (27, 158, 119)
SECOND_ONLY: RGB = (217, 95, 2)
"""Members of only the first and of only the second of two slices."""

METHODS = {
    # NNSlicer's rankings and presets are blue.
    "NNSlicer": "#0072b2",
    "NNSlicer (targeted)": "#0072b2",
    "NNSlicer (all)": "#56b4e9",
    "NNSlicer, θ = 0": "#7f9fd6",
    "NNSlicer, ours": "#00375c",
    "paper": "#9cc9e8",
    "margin": "#56b4e9",
    "fused": "#0072b2",
    "slices": "#7f9fd6",
    "stable": "#00375c",
    "lean": "#4a4ab0",
    "photos": "#5b2a86",
    # Methods that NNSlicer is compared with.
    "EffectivePath": "#e69f00",
    "EffectivePath margin": "#8f6300",
    "FeatureMap": "#009e73",
    "FeatureMap margin": "#00513b",
    "Weight": "#d55e00",
    "Channel": "#cc79a7",
    "logit margin": "#cc79a7",
    "Random": "#8a8f98",
    "Everything": "#222222",
    "flag everything": "#222222",
    # Fault localisation: by gradients, by slices; DeepFault's formulas are dashed.
    "gradient_contrast": "#0072b2",
    "patching": "#00375c",
    "gradient": "#56b4e9",
    "wrong_minus_right": "#009e73",
    "contrast": "#00513b",
    "tarantula": "#e69f00",
    "ochiai": "#d55e00",
    "dstar": "#cc79a7",
    "deepfault_tarantula": "#e69f00",
    "deepfault_ochiai": "#d55e00",
    "deepfault_dstar": "#cc79a7",
    "random": "#8a8f98",
    # Semantic slicing.
    "NeuSemSlice": "#0072b2",
    "NeuSemSlice, centred": "#00375c",
    "Global": "#8a8f98",
    "Category-wise": "#e69f00",
    "DeepArc": "#d55e00",
    # Searches for deviations.
    "DFlare": "#0072b2",
    "Algorithm 1": "#56b4e9",
    "DiffChaser": "#e69f00",
    # Attributions.
    "slice": "#0072b2",
    "amounts": "#0072b2",
    "DeepLIFT": "#56b4e9",
    "gradient × input": "#e69f00",
    "SmoothGrad": "#8f6300",
    "expected gradients": "#4a4ab0",
    "RISE": "#5b2a86",
    "integrated gradients": "#009e73",
    "integrated gradients, 50 samples": "#00513b",
    "Grad-CAM": "#d55e00",
    "occlusion": "#cc79a7",
    "random order": "#8a8f98",
}
"""Method → its colour in every figure."""

MARKERS = {
    "NNSlicer": "o",
    "NNSlicer (targeted)": "o",
    "NNSlicer (all)": "s",
    "NNSlicer, θ = 0": "v",
    "NNSlicer, ours": "D",
    "paper": "o",
    "margin": "s",
    "fused": "D",
    "stable": "^",
    "slices": "v",
    "lean": "d",
    "photos": "p",
    "FeatureMap": "h",
    "FeatureMap margin": "P",
    "EffectivePath": "*",
    "EffectivePath margin": "X",
    "Weight": "^",
    "Channel": "P",
    "Random": "x",
    "Everything": ">",
    "logit margin": "<",
    "flag everything": ">",
    "DFlare": "o",
    "Algorithm 1": "s",
    "DiffChaser": "^",
    "slice": "o",
    "amounts": "o",
    "DeepLIFT": "*",
    "gradient × input": "s",
    "SmoothGrad": "p",
    "expected gradients": "<",
    "RISE": ">",
    "integrated gradients": "^",
    "integrated gradients, 50 samples": "v",
    "Grad-CAM": "D",
    "occlusion": "P",
    "random order": "x",
}
"""Method → its marker in figures where curves may coincide."""
