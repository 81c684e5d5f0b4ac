import numpy as np
import pytest

from nnslicer_tf.dflare import AudioDomain
from nnslicer_tf.errors import InputShapeError
from support.deviating import find

OPERATORS = AudioDomain().operators

RATE = 8000


def tone(frequency, seconds=0.5):
    return (0.5 * np.sin(2 * np.pi * frequency * np.arange(RATE * seconds) / RATE)).astype("f4")


def pitch(signal):
    """The loudest frequency, in hertz."""
    spectrum = np.abs(np.fft.rfft(signal * np.hanning(len(signal))))
    return spectrum.argmax() * RATE / len(signal)


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
@pytest.mark.parametrize("length", [16, 4000])
def test_mutants_are_signals_and_repeatable(operator, length):
    signal = np.random.default_rng(1).uniform(-1, 1, length).astype(np.float32)
    rng = np.random.default_rng(0)
    for _ in range(10):
        parameters = operator.draw(rng, signal)
        mutant = operator.apply(signal, parameters)
        assert mutant.shape == signal.shape and mutant.dtype == np.float32
        assert np.abs(mutant).max() <= 1
        np.testing.assert_array_equal(operator.apply(signal, parameters), mutant)


@pytest.mark.parametrize("semitones", [-4, 3])
def test_pitch_shift_moves_the_pitch_and_not_the_length(semitones):
    shifted = OPERATORS["pitch_shift"].apply(tone(600), {"semitones": semitones})
    assert abs(pitch(shifted[200:-200]) - 600 * 2 ** (semitones / 12)) < 6
    assert np.abs(shifted[-400:]).max() > 0.2


@pytest.mark.parametrize("rate", [0.8, 1.25])
def test_time_stretch_keeps_the_pitch(rate):
    stretched = OPERATORS["time_stretch"].apply(tone(600), {"rate": rate})
    kept = stretched[200 : int(4000 / max(rate, 1)) - 200]
    assert abs(pitch(kept) - 600) < 6
    silent = np.abs(stretched[int(4000 / rate) + 100 :])
    assert not silent.any()


def test_gain_and_time_shift_in_closed_form():
    signal = np.linspace(-0.5, 0.5, 10, dtype=np.float32)
    np.testing.assert_allclose(
        OPERATORS["gain"].apply(signal, {"decibels": 20.0}), np.clip(10 * signal, -1, 1), rtol=1e-5
    )
    np.testing.assert_array_equal(
        OPERATORS["time_shift"].apply(signal, {"samples": 3}),
        np.concatenate([[0, 0, 0], signal[:-3]]),
    )
    np.testing.assert_array_equal(
        OPERATORS["time_shift"].apply(signal, {"samples": -3}),
        np.concatenate([signal[3:], [0, 0, 0]]),
    )


def loudness_model(threshold):
    """Two classes by loudness: class 1 if the root mean square exceeds `threshold`."""

    def probabilities(x):
        loud = 1 / (1 + np.exp(-20 * (np.sqrt((x.astype(float) ** 2).mean(axis=1)) - threshold)))
        return np.stack([1 - loud, loud], axis=1)

    return probabilities


def test_deviations_of_a_small_audio_model():
    seeds = np.stack([tone(f) * a for f, a in ((300, 0.3), (500, 0.5), (700, 1.6), (900, 1.8))])
    domain = AudioDomain()
    found = find(loudness_model(0.20), loudness_model(0.21), seeds, domain=domain, progress=False)
    assert found.success_rate == 1
    loudness = np.sqrt((found.images.astype(float) ** 2).mean(axis=1))
    assert ((loudness > 0.20) & (loudness < 0.21)).all()
    for seed, outcome in zip(seeds, found, strict=True):
        repeated = domain.replay(seed, outcome.deviation.trace)
        np.testing.assert_array_equal(repeated, outcome.deviation.image)


@pytest.mark.parametrize(
    "seeds",
    [
        np.zeros((2, 100)),
        np.full((2, 100), 2, np.float32),
        np.full((2, 100), np.nan, np.float32),
        np.zeros(100, np.float32),
    ],
    ids=["float64", "too loud", "NaN", "no batch"],
)
def test_bad_seeds(seeds):
    with pytest.raises(InputShapeError, match="Seed signals must"):
        AudioDomain().check_seeds(seeds)
