"""One-dimensional audio: the operators of the DFlare paper's section 6.1.

Signals are `(samples,) float32` in −1 … 1; results are cut, or padded with silence, to the original
length. Time stretching and pitch shifting use a phase vocoder (with 75 % overlap).
"""

from collections.abc import Sequence

import numpy as np
from scipy.signal import istft, resample, stft

from nnslicer_tf.dflare.domain import Domain, MutationOperator, Parameters
from nnslicer_tf.errors import InputShapeError

_WINDOW = 256  # samples in a window of the phase vocoder, or all of a shorter signal


def time_stretch(x: np.ndarray, parameters: Parameters) -> np.ndarray:
    """Play slower or faster at the same pitch."""
    return _valid(_stretched(x, parameters["rate"]), len(x))


def pitch_shift(x: np.ndarray, parameters: Parameters) -> np.ndarray:
    """Shift the pitch at the same speed: stretch, then resample to the old length."""
    factor = 2 ** (parameters["semitones"] / 12)
    stretched = _stretched(x, 1 / factor)
    return _valid(resample(stretched, max(1, round(len(stretched) / factor))), len(x))


def draw_shift(rng: np.random.Generator, x: np.ndarray) -> Parameters:
    """Draw a shift of up to a quarter of the signal, never 0."""
    shift = int(rng.integers(1, max(2, len(x) // 4)))
    return {"samples": shift if rng.random() < 0.5 else -shift}


def time_shift(x: np.ndarray, parameters: Parameters) -> np.ndarray:
    """Shift, filling with silence."""
    shift, shifted = int(parameters["samples"]), np.zeros_like(x)
    if shift > 0:
        shifted[shift:] = x[:-shift]
    else:
        shifted[:shift] = x[-shift:]
    return shifted


def gain(x: np.ndarray, parameters: Parameters) -> np.ndarray:
    """Change the volume; values beyond −1 … 1 are clipped."""
    return _valid(x * 10 ** (parameters["decibels"] / 20), len(x))


AUDIO_OPERATORS = (
    MutationOperator(
        "time_stretch",
        lambda rng, x: {"rate": float(np.exp(rng.uniform(np.log(0.8), np.log(1.25))))},
        time_stretch,
    ),
    MutationOperator(
        "pitch_shift", lambda rng, x: {"semitones": float(rng.uniform(-4, 4))}, pitch_shift
    ),
    MutationOperator("time_shift", draw_shift, time_shift),
    MutationOperator("gain", lambda rng, x: {"decibels": float(rng.uniform(-12, 12))}, gain),
)


class AudioDomain(Domain):
    """Signals `(samples,) float32` in −1 … 1, mutated by `operators`."""

    def __init__(self, operators: Sequence[MutationOperator] = AUDIO_OPERATORS) -> None:
        super().__init__(operators)

    def check_seeds(self, seeds: np.ndarray) -> None:
        """Raise `InputShapeError` unless `seeds` is `(batch, samples) float32` in −1 … 1."""
        if seeds.ndim != 2 or seeds.shape[1] < 8:
            raise InputShapeError(
                "Seed signals must have the shape (batch, samples) with at least 8 samples. "
                f"Received: {seeds.shape}"
            )
        if seeds.dtype != np.float32 or not np.abs(seeds).max() <= 1:
            raise InputShapeError(
                "Seed signals must be finite float32 in -1 … 1. Received: "
                f"{seeds.dtype} with {seeds.min()} … {seeds.max()}"
            )


def _valid(signal: np.ndarray, length: int) -> np.ndarray:
    """Cut or pad a signal to `length`, and clip it to −1 … 1."""
    result = np.zeros(length, np.float32)
    overlap = min(length, len(signal))
    result[:overlap] = np.clip(signal[:overlap], -1, 1)
    return result


def _stretched(x: np.ndarray, rate: float) -> np.ndarray:
    """Play `x` at `rate` times its speed, with a phase vocoder."""
    window = min(_WINDOW, len(x))
    hop = max(1, window // 4)
    spectrum = stft(x, nperseg=window, noverlap=window - hop)[2]
    times = np.arange(0, spectrum.shape[1] - 1, rate)
    before = times.astype(int)
    share = times - before
    magnitude = np.abs(spectrum)
    magnitude = (1 - share) * magnitude[:, before] + share * magnitude[:, before + 1]
    # The phases of the new frames advance by the true frequency of each bin.
    phase = np.angle(spectrum)
    expected = 2 * np.pi * hop * np.arange(len(phase))[:, None] / window
    advance = np.diff(phase, axis=1) - expected
    advance -= 2 * np.pi * np.round(advance / (2 * np.pi))
    steps = np.cumsum((advance + expected)[:, before[:-1]], axis=1)
    phase = np.concatenate([phase[:, :1], phase[:, :1] + steps], axis=1)
    stretched = istft(magnitude * np.exp(1j * phase), nperseg=window, noverlap=window - hop)[1]
    return stretched[: round(len(x) / rate)]
