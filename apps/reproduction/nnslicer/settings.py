"""Settings of the NNSlicer paper's experiments."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from typer import Option

from reproduction.settings import Settings, View

DEFAULT_RATE = 0.05


def split_names(text: str) -> list[str]:
    """Return names that are separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


_QUICK_DETECTORS = "paper,margin,fused,stable,FeatureMap,EffectivePath,logit margin,flag everything"
_QUICK_ATTACKS = (
    "FGSM_2,FGSM_4,FGSM_8,DeepFoolLinf,DeepFoolL2,RPGD_2,RPGD_4,RPGD_8,Spatial,GaussianBlur"
)

_DIGITS = {"model": "digits_cnn", "dataset": "digits", "ending": "-quick"}

# Options of several experiments.
Model = Annotated[str, Option(help="Name in the zoo; of some experiments, a .keras or .h5 file.")]
Dataset = Annotated[str, Option(help="Its data set, such as mnist or cifar10.")]
Normalise = Annotated[str, Option(help="The model's inputs: unit or standard.")]
Profiled = Annotated[int, Option(help="Training images of the profile.", min=1)]
Theta = Annotated[float, Option(help="Threshold of the slices.", min=0)]
Seed = Annotated[int, Option(help="Random seed.", min=0)]
Work = Annotated[Path, Option(help="Folder of resumable work.")]
Ending = Annotated[str, Option(help="End of the files' names.")]

Normal = Annotated[int, Option(help="Normal training inputs.", min=200)]
Attacked = Annotated[int, Option(help="Images to attack.", min=1)]
Skip = Annotated[int, Option(help="Images of the split to leave out before these.", min=0)]
Names = Annotated[str, Option(help="Names, separated by commas; default: all.")]
Rate = Annotated[float, Option(help="False-positive rate set for the detectors.")]
Resamples = Annotated[int, Option(help="Resamples for the intervals.", min=10)]

Samples = Annotated[int, Option(help="Training images of each class for ranking.", min=1)]
Subsets = Annotated[int, Option(help="Number of sets of target classes; 0: all.", min=0)]
Methods = Annotated[list[str] | None, Option(help="Methods to compare; default: all.")]
Share = Annotated[float, Option(help="Share of the synapses to hide.", min=0.001, max=1.0)]
Budgets = Annotated[list[int] | None, Option(help="Images of an attacker.")]


@dataclass(frozen=True)
class PatchSettings(Settings):
    """Slice images of a vision transformer; draw contributions of patches and heads."""

    trial: ClassVar = {"train": 50, "classes": (0, 8)}
    kept = "slices"
    train: Profiled = 2000
    theta: Theta = 0.1
    classes: tuple[int, ...] = (0, 3, 5, 7, 8)


@dataclass(frozen=True)
class OverTimeSettings(Settings):
    """Slice images of an LSTM that reads them row by row; draw contributions over time."""

    trial: ClassVar = {"train": 300}
    kept = "slices"
    train: Profiled = 5000
    theta: Theta = 0.3
    classes: tuple[int, ...] = (7, 3)


@dataclass(frozen=True)
class DrawingSettings(Settings):
    """Slice pairs of normal and adversarial inputs; draw the first pair, compare all."""

    trial: ClassVar = {"images": 10, "train": 500}
    trial_folder = Path("runs/slices")
    kept = "slices"
    model: Model = "lenet5"
    dataset: Dataset = "mnist"
    attack: Annotated[str, Option(help="Name of the attack.")] = "FGSM_8"
    images: Annotated[int, Option(help="Pairs to measure on.", min=1)] = 100
    train: Profiled = 10_000
    theta: Theta = 0.3
    explore: View = None
    seed: Seed = 0


@dataclass(frozen=True)
class HeldOutSettings(Settings):
    """Settings of the experiments on slices of held-out images."""

    kept = "program"
    model: Model = "resnet10"
    dataset: Dataset = "cifar10"
    split: Annotated[str, Option(help="Split of the images.")] = "train[90%:]"
    images: Annotated[int, Option(help="Number of images.", min=1)] = 100
    train: Annotated[int, Option(help="Training images of the means.", min=1)] = 10_000
    seed: Seed = 0


@dataclass(frozen=True)
class SliceReadingSettings(HeldOutSettings):
    """Compare the readings of the definitions on single slices."""

    trial: ClassVar = {"images": 5, "train": 500, "theta": [0.3]}
    theta: Annotated[
        list[float] | None, Option(help="Thresholds; default: 0.1 and 0.3.", min=0)
    ] = None
    work: Work = Path("runs/readings")


@dataclass(frozen=True)
class SpecialCaseSettings(HeldOutSettings):
    """Count what the special cases of the program's exclusion change."""

    trial: ClassVar = {"images": 5, "train": 500, "neurons": 100}
    neurons: Annotated[int, Option(help="Neurons of each kernel, at most.", min=1)] = 2_000
    theta: Annotated[float, Option(help="Threshold.", min=0)] = 0.2


@dataclass(frozen=True)
class DetectorSettings(Settings):
    """Settings common to the experiments on detectors."""

    model: Model = "lenet5"
    dataset: Dataset = "mnist"
    train: Normal = 10_000
    images: Attacked = 500
    skip: Skip = 0
    attacks: Names = ""
    theta: Theta = 0.0
    seed: Seed = 0
    work: Work = Path("runs/detection")
    ending: Ending = ""


@dataclass(frozen=True)
class DetectionSettings(DetectorSettings):
    """Measure detectors on attacks (Table 4)."""

    trial: ClassVar = {
        **{"train": 2_000, "images": 100, "ending": "-quick"},
        **{"attacks": _QUICK_ATTACKS, "methods": _QUICK_DETECTORS},
    }
    kept = "detection"
    normalise: Normalise = "unit"
    methods: Names = ""
    false_positive_rate: Rate = DEFAULT_RATE
    explore: View = None


@dataclass(frozen=True)
class ChallengeSettings(DetectorSettings):
    """Attack detectors with adaptive attacks; the table includes the attacks' sanity checks."""

    trial: ClassVar = {
        **{**_DIGITS, "train": 600, "skip": 0, "images": 20, "methods": "logit margin,fused"},
        **{"norms": "linf", "steps": 20, "queries": 40},
    }
    kept = "detection/challenge"
    images: Attacked = 50
    skip: Skip = 500
    methods: Names = "logit margin,fused,stable,slices,lean"
    norms: Annotated[str, Option(help="linf, l2.")] = "linf,l2"
    steps: Annotated[int, Option(help="Gradient steps of a white-box attack.", min=1)] = 40
    queries: Annotated[int, Option(help="Queries of a black-box attack.", min=1)] = 150
    rounds: Annotated[int, Option(help="Weights of a sum; rounds of the smallest change.")] = 3
    false_positive_rate: Rate = DEFAULT_RATE


@dataclass(frozen=True)
class ChoiceSettings(DetectorSettings):
    """Choose on training images which evidence a detector fuses."""

    trial: ClassVar = {
        **{**_DIGITS, "train": 500, "skip": 900, "images": 40, "normals": 300},
        **{"attacks": "FGSM_4,RPGD_4", "resamples": 20},
    }
    kept = "detection/choice"
    skip: Skip = 55_000  # the model should not know the next images
    images: Attacked = 192
    normals: Annotated[int, Option(help="Normal training images after these.", min=20)] = 2_000
    contribution: Annotated[Literal["count", "amount"], Option(help="What slices add up.")] = (
        "count"
    )
    resamples: Resamples = 500


@dataclass(frozen=True)
class EvidenceSettings(ChallengeSettings):
    """Compare evidences: against attacks, inputs from elsewhere, and plain errors."""

    trial: ClassVar = {
        **{**ChallengeSettings.trial, "methods": "fused", "known": "FGSM_4,RPGD_4", "outside": ""},
        **{"attacked": 50, "normals": 200, "errors": 350, "resamples": 50},
    }
    kept = "detection/evidence"
    methods: Names = "fused,stable,slices,lean"
    known: Annotated[str, Option(help="Non-adaptive attacks; default: all 17.")] = ""
    attacked: Annotated[int, Option(help="Test images that these attack.", min=1)] = 100
    normals: Annotated[int, Option(help="Normal test images to compare with.", min=40)] = 2_000
    errors: Annotated[int, Option(help="Test images to search for errors.", min=1)] = 9_500
    outside: Annotated[str, Option(help="Other data sets, as out-of-distribution inputs.")] = (
        "digits,mnist,cifar10"
    )
    elsewhere: Annotated[int, Option(help="Images of each of these sets.", min=2)] = 500
    resamples: Resamples = 500


@dataclass(frozen=True)
class ProgramDetectionSettings(Settings):
    """Detect by the rule of the paper's program, with its scoring and an honest one (Table 4)."""

    trial: ClassVar = {"train": 50, "images": 60, "attacks": "FGSM_8"}
    kept = "program"
    model: Model = "resnet10_preactivation"
    dataset: Dataset = "cifar10"
    train: Annotated[int, Option(help="Training images of each class.", min=5)] = 1_000
    images: Attacked = 500
    skip: Skip = 0
    attacks: Names = _QUICK_ATTACKS
    method: Methods = None
    seed: Seed = 0
    work: Work = Path("runs/detection")


@dataclass(frozen=True)
class TargetSettings(Settings):
    """Settings common to all experiments on target classes."""

    model: Model = "resnet10"
    dataset: Dataset = "cifar10"
    normalise: Normalise = "unit"
    samples: Samples = 100
    profiled: Profiled = 45_000
    subsets: Subsets = 0
    size: Annotated[int, Option(help="Classes in a set.", min=1)] = 4
    seed: Seed = 0
    work: Work = Path("runs/pruning")

    @property
    def model_name(self) -> str:
        """Name of the model without folder and suffix."""
        return Path(self.model).stem

    def work_folder(self, weights: str) -> Path:
        """Return the folder of resumable work for these settings and a model's fingerprint."""
        sizes = f"{self.normalise}-{self.samples}-{self.profiled}-{self.seed}"
        return self.work / f"{self.model_name}-{self.dataset}-{sizes}-{weights[:12]}"


@dataclass(frozen=True)
class RatioSettings(TargetSettings):
    """Settings common to all experiments on prune ratios."""

    trial: ClassVar = {"samples": 10, "profiled": 500, "subsets": 2, "ratio": (0.5,)}
    kept = "pruning"
    ratio: Annotated[list[float] | None, Option(min=0.0, max=0.999, help="Prune ratios.")] = None


@dataclass(frozen=True)
class CurveSettings(RatioSettings):
    """Measure accuracy without fine-tuning by prune ratio (Figure 3)."""


@dataclass(frozen=True)
class FineTuningSettings(RatioSettings):
    """Measure accuracy after one epoch of training by prune ratio (Figure 4)."""

    trial: ClassVar = {**RatioSettings.trial, "subsets": 1, "images": 300, "ratio": (0.9,)}
    subsets: Subsets = 2
    images: Annotated[int, Option(help="Images of the epoch.", min=1)] = 10_000


@dataclass(frozen=True)
class AttributeSettings(Settings):
    """Slice an attribute, the tint of digits, out of a network; attackers train anew."""

    trial: ClassVar = {"images": 1000, "seeds": 1}
    kept = "pruning"
    images: Annotated[int, Option(help="Training images, also of attackers.", min=500)] = 6_000
    seeds: Annotated[int, Option(help="Networks, each from other images.", min=1)] = 3
    work: Annotated[Path, Option(help="Folder of resumable work.")] = Path("runs/attribute")


@dataclass(frozen=True)
class AblationSettings(RatioSettings):
    """Compare choices that the paper leaves open, and our changes, on held-out training images."""

    trial: ClassVar = {**RatioSettings.trial, "subsets": 1, "images": 100}
    samples: Samples = 50
    profiled: Profiled = 5_000
    subsets: Subsets = 8
    images: Annotated[int, Option(help="Held-out images to measure on.", min=1)] = 1_000


@dataclass(frozen=True)
class ProgramSettings(RatioSettings):
    """Prune by the procedure of the paper's program, and treat all methods alike (Figure 3)."""

    trial: ClassVar = {**RatioSettings.trial, "subsets": 2, "images": 100}
    kept = "program"
    model: Model = "resnet10_preactivation"
    samples: Samples = 1_000
    profiled: Profiled = 10_000
    subsets: Subsets = 10
    treatment: Annotated[list[str] | None, Option(help="Treatments; default: all.")] = None
    held_out: Annotated[bool, Option(help="Measure on held-out training images.")] = False
    images: Annotated[int, Option(help="Images to measure on.", min=1)] = 1_000

    @property
    def split(self) -> str:
        """The split of the images to measure on."""
        return "train[90%:]" if self.held_out else "test"


@dataclass(frozen=True)
class ReadingSettings(ProgramSettings):
    """Change single choices of the program's procedure, on held-out training images."""

    samples: Samples = 200
    held_out: bool = True


@dataclass(frozen=True)
class ProtectionSettings(TargetSettings):
    """Hide synapses, let attackers retrain the model, and measure their accuracy (Figure 5)."""

    trial: ClassVar = {
        **{"samples": 10, "profiled": 500, "subsets": 1},
        **{"repetitions": 1, "epochs": 1, "budget": [300]},
    }
    kept = "protection"
    subsets: Subsets = 2
    work: Work = Path("runs/protection")
    share: Share = 0.5
    budget: Budgets = None
    epochs: Annotated[int, Option(help="Epochs of an attacker.", min=1)] = 5
    repetitions: Annotated[int, Option(help="Attacks of each kind.", min=1)] = 3
    method: Methods = None
    trains: Annotated[Literal["all", "hidden", "known"], Option(help="Weights to train.")] = "all"
    without_targets: Annotated[bool, Option(help="Train without images of target classes.")] = False


@dataclass(frozen=True)
class ProgramProtectionSettings(TargetSettings):
    """Hide synapses as the paper's program does, and let its attackers retrain (Figure 5)."""

    trial: ClassVar = {"samples": 10, "profiled": 500, "subsets": 1, "budget": [300]}
    kept = "program"
    model: Model = "resnet10_preactivation"
    samples: Samples = 1_000
    profiled: Profiled = 10_000
    subsets: Subsets = 10
    work: Work = Path("runs/pruning")  # the rankings are those of pruning
    share: Share = 0.5
    budget: Budgets = None
    method: Methods = None
    first: Annotated[int, Option(help="Measure only the first n sets; 0: all.", min=0)] = 0
    attacker: Annotated[
        Literal["program", "one softmax", "all weights", "distillation"],
        Option(help="How attackers train."),
    ] = "program"


@dataclass(frozen=True)
class ShrinkSettings(Settings):
    """Shrink a model for pairs of classes; measure remaining parameters, latency and accuracy."""

    trial: ClassVar = {"train": "train[:1000]", "pairs": 1, "method": ["contributions", "Random"]}
    kept = "pruning"
    model: Model = "lenet5"
    dataset: Dataset = "mnist"
    normalise: Normalise = "unit"
    file: Annotated[Path | None, Option(help="A model's file, instead of the zoo's.")] = None
    train: Annotated[str, Option(help="Split to score, fit and train with.")] = "train"
    ratio: Annotated[float, Option(help="Share of the parameters to remove.")] = 0.75
    pairs: Annotated[int, Option(help="Pairs of classes, drawn at random.", min=1)] = 5
    method: Methods = None
    epochs: Annotated[list[int] | None, Option(help="Epochs of imitating the original.")] = None
    seed: Seed = 0
    work: Work = Path("runs/shrink")


@dataclass(frozen=True)
class MapSettings(Settings):
    """Shrink a U-Net for maps of digits to half its parameters; measure the maps."""

    trial: ClassVar = {
        **{"images": 200, "tested": 50, "epochs": 1, "tuned": 1, "seeds": 1, "width": 4},
        "method": ["contributions", "random"],
    }
    kept = "pruning"
    width: Annotated[int, Option(help="Filters at the top of the U-Net.", min=4)] = 8
    images: Annotated[int, Option(help="Maps to train, score, fit and tune with.", min=100)] = 4000
    tested: Annotated[int, Option(help="Maps to measure with.", min=10)] = 2000
    split: Annotated[Literal["test", "held-out"], Option(help="What these are made of.")] = "test"
    epochs: Annotated[int, Option(help="Epochs of training.", min=1)] = 16
    tuned: Annotated[int, Option(help="Epochs of fine-tuning the smaller network.", min=0)] = 8
    ratio: Annotated[float, Option(help="Share of the parameters to remove.")] = 0.5
    method: Methods = None
    seeds: Annotated[int, Option(help="Number of seeds: of maps, weights and training.", min=1)] = 3
    work: Work = Path("runs/shrink-maps")
