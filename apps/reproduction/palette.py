"""Colours and markers of the compared methods, safe for the colour-blind.

They are colours of Okabe and Ito ("Color universal design", 2008); families of methods have
shades of one of them.
"""

_LOOKS = {
    # NNSlicer's rankings and presets are blue.
    "NNSlicer": ("#0072b2", "o"),
    "NNSlicer (targeted)": ("#0072b2", "o"),
    "NNSlicer (all)": ("#56b4e9", "s"),
    "NNSlicer, θ = 0": ("#7f9fd6", "v"),
    "NNSlicer, ours": ("#00375c", "D"),
    "paper": ("#9cc9e8", "o"),
    "margin": ("#56b4e9", "s"),
    "fused": ("#0072b2", "D"),
    "slices": ("#7f9fd6", "v"),
    "stable": ("#00375c", "^"),
    "lean": ("#4a4ab0", "d"),
    "photos": ("#5b2a86", "p"),
    # Methods that NNSlicer is compared with.
    "EffectivePath": ("#e69f00", "*"),
    "EffectivePath margin": ("#8f6300", "X"),
    "FeatureMap": ("#009e73", "h"),
    "FeatureMap margin": ("#00513b", "P"),
    "Weight": ("#d55e00", "^"),
    "Channel": ("#cc79a7", "P"),
    "logit margin": ("#cc79a7", "<"),
    "Random": ("#8a8f98", "x"),
    "Everything": ("#222222", ">"),
    "flag everything": ("#222222", ">"),
    # Fault localisation: by gradients, by slices; DeepFault's formulas are dashed.
    "gradient_contrast": ("#0072b2", None),
    "patching": ("#00375c", None),
    "gradient": ("#56b4e9", None),
    "wrong_minus_right": ("#009e73", None),
    "contrast": ("#00513b", None),
    "tarantula": ("#e69f00", None),
    "ochiai": ("#d55e00", None),
    "dstar": ("#cc79a7", None),
    "deepfault_tarantula": ("#e69f00", None),
    "deepfault_ochiai": ("#d55e00", None),
    "deepfault_dstar": ("#cc79a7", None),
    "random": ("#8a8f98", None),
    # Semantic slicing.
    "NeuSemSlice": ("#0072b2", None),
    "NeuSemSlice, centred": ("#00375c", None),
    "Global": ("#8a8f98", None),
    "Category-wise": ("#e69f00", None),
    "DeepArc": ("#d55e00", None),
    # Searches for deviations.
    "DFlare": ("#0072b2", "o"),
    "Algorithm 1": ("#56b4e9", "s"),
    "DiffChaser": ("#e69f00", "^"),
    # Attributions.
    "slice": ("#0072b2", "o"),
    "amounts": ("#0072b2", "o"),
    "DeepLIFT": ("#56b4e9", "*"),
    "gradient × input": ("#e69f00", "s"),
    "SmoothGrad": ("#8f6300", "p"),
    "expected gradients": ("#4a4ab0", "<"),
    "RISE": ("#5b2a86", ">"),
    "integrated gradients": ("#009e73", "^"),
    "integrated gradients, 50 samples": ("#00513b", "v"),
    "Grad-CAM": ("#d55e00", "D"),
    "occlusion": ("#cc79a7", "P"),
    "random order": ("#8a8f98", "x"),
}

METHODS = {method: colour for method, (colour, _) in _LOOKS.items()}
"""Method → its colour in every figure."""

MARKERS = {method: marker for method, (_, marker) in _LOOKS.items() if marker}
"""Method → its marker in figures where curves may coincide."""
