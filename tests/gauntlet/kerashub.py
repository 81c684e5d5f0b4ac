"""The families of KerasHub: each is wrapped, compared, sliced, explained and decided.

    python tests/gauntlet/kerashub.py [FAMILY …]

builds small models with random weights and writes `data/results/kerashub/families.csv`, a row when
it is done: an interrupted run goes on where it stopped (delete the file to begin anew). A model
that is refused has the reason in the table. It takes about ten minutes on two free cores.
"""

import csv
import gc
import inspect
import re
import sys
import time
import traceback
from datetime import date
from pathlib import Path

import keras
import keras_hub
import numpy as np
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.slicing._zero_walk import Reference

TABLE = Path(__file__).parents[2] / "data" / "results" / "kerashub" / "families.csv"
FIELDS = ("family", "model", "operations", "kernels", "attentions", "heads", "wrap", "difference")
FIELDS = (*FIELDS, "slice", "amounts", "explain", "decisive", "outcome", "reason", "versions")
LENGTH, VOCABULARY, IMAGE = 6, 30, (32, 32, 3)

# Arguments by name: a small model of any family
SMALL = {
    **dict.fromkeys(("vocabulary_size", "vocab_size"), VOCABULARY),
    **dict.fromkeys(("num_layers", "num_layers_enc", "num_layers_dec", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_heads", "num_query_heads", "num_attention_heads"), 2),
    "num_key_value_heads": 1,
    **dict.fromkeys(("hidden_dim", "embedding_dim", "hidden_size"), 8),
    **dict.fromkeys(("head_dim", "head_size", "key_value_dim"), 4),
    **dict.fromkeys(("intermediate_dim", "mlp_dim", "moe_intermediate_dim"), 12),
    **dict.fromkeys(("shared_expert_intermediate_dim", "shared_expert_intermediate_size"), 12),
    **dict.fromkeys(("max_sequence_length", "max_position_embeddings"), 16),
    "num_experts": 3,
    "top_k": 2,
    "image_shape": IMAGE,
    "patch_size": 8,
    "dropout": 0.0,
}


def backbone(name, **options):
    """Return a small backbone; `options` replace the arguments of `SMALL`."""
    made = getattr(keras_hub.models, f"{name}Backbone")
    known = inspect.signature(made.__init__).parameters
    return made(**{**{k: v for k, v in SMALL.items() if k in known}, **options})


def classifier(model, features=None):
    """Return a model with three logits of what a backbone computes, averaged over positions."""
    output = model.output if features is None else model.output[features]
    if isinstance(output, dict):
        output = list(output.values())[-1]
    if isinstance(output, (list, tuple)):
        output = output[-1]
    pools = {
        3: layers.GlobalAveragePooling1D,
        4: layers.GlobalAveragePooling2D,
        5: layers.GlobalAveragePooling3D,
    }
    if len(output.shape) in pools:
        output = pools[len(output.shape)](name="pooled")(output)
    return keras.Model(model.input, layers.Dense(3, name="logits")(output))


def resnet(**options):
    return backbone(
        "ResNet",
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64, 64],
        stackwise_num_blocks=[1, 1],
        stackwise_num_strides=[1, 2],
        block_type="basic_block",
        **options,
    )


def vit(**options):
    return backbone("ViT", image_shape=IMAGE, **options)


def smollm(name):
    return backbone(
        name,
        attention_bias=False,
        attention_dropout=0.0,
        rope_layer_enabled_list=[True, True],
        layer_types=["full_attention"] * 2,
        mlp_bias=False,
        layer_norm_epsilon=1e-6,
        rope_theta=1e4,
        partial_rotary_factor=1.0,
    )


def clip(name):
    vision, text = f"{name}VisionEncoder", f"{name}TextEncoder"
    import keras_hub.src.models.clip.clip_text_encoder as texts
    import keras_hub.src.models.clip.clip_vision_encoder as visions

    vision = visions.CLIPVisionEncoder(8, 8, 2, 2, 12, image_shape=IMAGE)
    text = texts.CLIPTextEncoder(VOCABULARY, 8, 8, 2, 2, 12, max_sequence_length=LENGTH)
    return keras_hub.models.CLIPBackbone(vision, text, projection_dim=8)


def t5gemma():
    one = ["full_attention"] * 2
    sizes = {}
    for part in ("encoder", "decoder"):
        sizes |= {
            f"{part}_hidden_dim": 8,
            f"{part}_intermediate_dim": 12,
            f"{part}_num_layers": 2,
            f"{part}_num_attention_heads": 2,
            f"{part}_num_key_value_heads": 1,
            f"{part}_head_dim": 4,
            f"{part}_layer_types": one,
        }
    return backbone("T5Gemma", **sizes)


def bert(**options):
    return backbone("Bert", **options)


def task(name, model, **options):
    return getattr(keras_hub.models, name)(backbone=model, preprocessor=None, **options)


TEXT = (
    *("Albert", "Bert", "Bloom", "DebertaV3", "DistilBert", "ESM", "Electra", "FNet", "Falcon"),
    *("GPT2", "GPTNeoX", "Gemma", "Llama", "Llama3", "Mistral", "Mixtral", "OPT", "Phi3", "Qwen"),
    *("Qwen3", "Qwen3Moe", "QwenMoe", "GptOss", "Roberta", "XLMRoberta", "XLNet", "RoformerV2"),
)
PAIRS = ("Bart", "T5", "Whisper")
FAMILIES = {
    **{name: lambda name=name: classifier(backbone(name)) for name in TEXT},
    **{name: lambda name=name: classifier(backbone(name)) for name in PAIRS},
    "GPTNeoX": lambda: classifier(backbone("GPTNeoX", rotary_percentage=1.0)),
    "Whisper": lambda: classifier(
        backbone(
            "Whisper", num_mels=4, max_encoder_sequence_length=16, max_decoder_sequence_length=8
        )
    ),
    "Gemma2": lambda: classifier(
        backbone(
            "Gemma",
            attention_logit_soft_cap=50.0,
            final_logit_soft_cap=30.0,
            use_post_ffw_norm=True,
            use_post_attention_norm=True,
            use_sliding_window_attention=True,
            sliding_window_size=4,
        )
    ),
    "Gemma3": lambda: classifier(backbone("Gemma3", image_size=None)),
    "SmolLM3": lambda: classifier(smollm("SmolLM3")),
    "T5Gemma": lambda: classifier(t5gemma()),
    "ResNet": lambda: classifier(resnet()),
    "DenseNet": lambda: classifier(
        backbone("DenseNet", stackwise_num_repeats=[1, 1], growth_rate=4)
    ),
    "VGG": lambda: classifier(
        backbone("VGG", stackwise_num_repeats=[1, 1], stackwise_num_filters=[4, 8])
    ),
    "ViT": lambda: classifier(vit()),
    "DeiT": lambda: classifier(backbone("DeiT")),
    "DINOV2": lambda: classifier(backbone("DINOV2", position_embedding_shape=IMAGE)),
    "DINOV3": lambda: classifier(backbone("DINOV3")),
    "SwinTransformer": lambda: classifier(
        backbone(
            "SwinTransformer",
            embed_dim=4,
            depths=[1, 1],
            num_heads=[1, 2],
            window_size=4,
            patch_size=4,
        )
    ),
    "MiT": lambda: classifier(
        backbone(
            "MiT",
            layerwise_depths=[1, 1],
            layerwise_num_heads=[1, 2],
            layerwise_sr_ratios=[2, 1],
            max_drop_path_rate=0.0,
            layerwise_patch_sizes=[7, 3],
            layerwise_strides=[4, 2],
            hidden_dims=[4, 8],
        )
    ),
    "DeepLabV3": lambda: classifier(
        keras_hub.models.DeepLabV3Backbone(
            image_encoder=resnet(),
            spatial_pyramid_pooling_key="P3",
            upsampling_size=4,
            dilation_rates=[2, 3],
            projection_filters=4,
            image_shape=IMAGE,
        )
    ),
    "Xception": lambda: classifier(
        backbone(
            "Xception", stackwise_conv_filters=[[4, 4], [8, 8]], stackwise_pooling=[True, False]
        )
    ),
    "CLIP": lambda: clip("CLIP"),
    "BertTextClassifier": lambda: task("BertTextClassifier", bert(), num_classes=3),
    "RobertaTextClassifier": lambda: task(
        "RobertaTextClassifier", backbone("Roberta"), num_classes=3, hidden_dim=8
    ),
    "GPT2CausalLM": lambda: task("GPT2CausalLM", backbone("GPT2")),
    "GemmaCausalLM": lambda: task("GemmaCausalLM", backbone("Gemma")),
    "LlamaCausalLM": lambda: task("LlamaCausalLM", backbone("Llama")),
    "BertMaskedLM": lambda: task("BertMaskedLM", bert()),
    "ViTImageClassifier": lambda: task("ViTImageClassifier", vit(), num_classes=3),
    "ResNetImageClassifier": lambda: task("ResNetImageClassifier", resnet(), num_classes=3),
    "DeepLabV3ImageSegmenter": lambda: task(
        "DeepLabV3ImageSegmenter",
        keras_hub.models.DeepLabV3Backbone(
            image_encoder=resnet(),
            spatial_pyramid_pooling_key="P3",
            upsampling_size=4,
            dilation_rates=[2, 3],
            projection_filters=4,
            image_shape=IMAGE,
        ),
        num_classes=3,
    ),
}


def data_for(model, samples=6):
    """Return random samples for a model's inputs, by name."""
    rng = np.random.default_rng(0)
    data = {}
    for tensor in model.inputs:
        name = tensor._keras_history.operation.name
        shape = (samples, *(LENGTH if n is None else n for n in tensor.shape[1:]))
        if "mask_positions" in name:
            data[name] = rng.integers(0, LENGTH, shape)
        elif "mask" in name:
            data[name] = np.ones(shape, np.int32)
        elif "segment" in name:
            data[name] = np.arange(shape[1])[None] // 3 * np.ones(shape, np.int32)
        elif "int" in tensor.dtype or "token_ids" in name:
            data[name] = rng.integers(1, VOCABULARY, shape)
        else:
            data[name] = rng.normal(size=shape).astype(np.float32)
    return data


def run(family):
    """Return the row of a family."""
    row = {"family": family, "outcome": "builds"}
    keras.utils.set_random_seed(0)
    try:
        model = FAMILIES[family]()
    except Exception as error:
        return {**row, "outcome": "not built", "reason": f"{type(error).__name__}: {error}"[:200]}
    rng = np.random.default_rng(1)
    for weight in model.weights:  # zeros of biases, and ones of gammas, would hide mistakes
        if "float" in weight.dtype and "variance" not in weight.path:
            weight.assign(weight + rng.normal(size=weight.shape, scale=0.1))
    row["model"] = type(model).__name__
    x = data_for(model)
    shapes = {name: value.shape[1:] for name, value in x.items()}
    single = len(x) == 1
    data = next(iter(x.values())) if single else x

    def part(n):
        return data[:n] if single else {k: v[:n] for k, v in x.items()}

    try:
        start = time.perf_counter()
        im = nns.InstrumentedModel(model, next(iter(shapes.values())) if single else shapes)
        row["wrap"] = round(time.perf_counter() - start, 1)
        heads = [o.heads for o in im.operations if o.heads and o.heads.role == "context"]
        row |= {"operations": len(im.operations), "kernels": len(im.kernels)}
        row |= {"attentions": len(heads), "heads": sum(h.count for h in heads)}
        expected = keras.tree.flatten(model(in_structure(model, x), training=False))
        found = im.predict(data)
        row["difference"] = f"{np.abs(found - np.asarray(expected[0], np.float32)).max():.1e}"
        row["outcome"] = "wraps"
        profile = nns.Profile.from_data(im, data, progress=False)
        criterion = {"outputs": {im.logit_operation: [0]}}
        start = time.perf_counter()
        slicer = nns.Slicer(im, profile, 0.3, workers=0, progress=False)
        slicer.slice(part(1), **criterion)
        row["slice"] = round(time.perf_counter() - start, 1)
        row["outcome"] = "slices"
        amounts = nns.Slicer(im, profile, 0.0, contribution="amount", workers=0, progress=False)
        one = amounts.slice(part(1), **criterion)
        total = sum(one.neurons[name].sum() for name in im.input_operations)
        logit = im.logit_operation
        reference = Reference(im, profile, [logit])
        values = im.capture(part(1), of=tuple({*reference.needs, logit}))
        usual = reference({n: keras.ops.convert_to_tensor(v) for n, v in values.items()}, 1)[logit]
        index = np.zeros(len(im[logit].shape), int)
        index[-1] = 0
        change = values[logit].ravel()[0] - np.asarray(usual).ravel()[0]
        row["amounts"] = f"{total:.4g} of {change:.4g}"
        if not np.isclose(total, change, rtol=1e-2, atol=1e-3):
            return {**row, "outcome": "amounts do not add up"}
        row["outcome"] = "adds up"
        start = time.perf_counter()
        target = None if len(im[logit].shape) == 1 else {logit: [0]}
        explanation = slicer.explain(part(1), target)
        row["explain"] = round(time.perf_counter() - start, 1)
        row["outcome"] = "explains"
        decisive = explanation.decisive
        if decisive is not None:
            row["decisive"] = "yes"
            row["outcome"] = "decides"
    except nns.errors.NNSlicerError as error:
        text = re.sub(r"/\S*/(\w+\.py)", r"\1", " ".join(str(error).split()))  # no paths
        row["reason"] = f"{type(error).__name__}: {text}"[:400]
        if row["outcome"] == "builds":
            row["outcome"] = "refused"
    except Exception as error:
        row["reason"] = f"CRASH {type(error).__name__}: {str(error).strip()[:300]}"
        if "-v" in sys.argv:
            traceback.print_exc()
    return row


def in_structure(model, x):
    structure = model.input
    if isinstance(structure, dict):
        return {key: x[t._keras_history.operation.name] for key, t in structure.items()}
    return [x[t._keras_history.operation.name] for t in keras.tree.flatten(structure)]


def main(names):
    rows = []
    if not names and TABLE.exists():
        with TABLE.open(newline="") as file:
            rows = list(csv.DictReader(file))
    done = {row["family"] for row in rows}
    versions = f"keras {keras.__version__}, keras-hub {keras_hub.__version__}, {date.today()}"
    for name in names or [family for family in FAMILIES if family not in done]:
        rows.append(run(name) | {"versions": versions})
        print(rows[-1], flush=True)
        gc.collect()
        if not names:
            TABLE.parent.mkdir(parents=True, exist_ok=True)
            with TABLE.open("w", newline="") as file:
                writer = csv.DictWriter(file, FIELDS)
                writer.writeheader()
                writer.writerows(rows)


if __name__ == "__main__":
    main([name for name in sys.argv[1:] if name != "-v"])
