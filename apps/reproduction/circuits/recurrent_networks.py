"""Recurrent networks whose weights are set by hand to compute a known function.

Some units compute the function; these units' weights are *planted*. All others are dead weight,
which carries values but changes no output:

- *twins*: pairs of units with the same random incoming weights, whose outgoing weights, to the
  circuit's units and to the outputs, are opposite, so that they cancel;
- *stuck* units, saturated by their bias, with random incoming and outgoing weights; their outputs
  are constant, and other biases compensate for them;
- *spectators*: units that read all inputs, and that only dead units read.

The magnitudes of dead weight are drawn from those of the planted weights, so that they reveal
nothing. Inputs beyond those of the circuit are noise that only dead units read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import keras
import numpy as np
from keras import layers

STEPS = 10
_NOISE = 3
_STUCK = 20.0


@dataclass(frozen=True, eq=False)
class Planted:
    """A network with a planted circuit.

    `dead` maps a sort of dead units, "twins", "stuck" or "spectators", to the synapses that lead to
    such a unit, or from one to the circuit, in the form of `planted`.
    """

    model: keras.Model  # maps `(10, inputs)` to two logits
    planted: dict[str, np.ndarray]  # kernel name → bool array of the kernel's shape
    dead: dict[str, dict[str, np.ndarray]]
    draw: Callable[[int, np.random.Generator], np.ndarray]  # inputs `(samples, 10, inputs)` float32
    answer: Callable[[np.ndarray], np.ndarray]  # the right classes `(samples,)` of inputs


class _Circuit(NamedTuple):
    """The weights of a circuit; those other than zero are planted, see `Planted`."""

    kernel: np.ndarray  # (inputs, units)
    recurrent: np.ndarray  # (units, units)
    bias: np.ndarray
    out: np.ndarray  # (units, 2)
    out_bias: np.ndarray
    activation: str
    draw: Callable[[int, np.random.Generator], np.ndarray]
    answer: Callable[[np.ndarray], np.ndarray]


def _tokens(kinds: int) -> Callable[[int, np.random.Generator], np.ndarray]:
    """Return a function that draws one-hot tokens, plus one kind that is encoded as zeros."""

    def draw(samples: int, rng: np.random.Generator) -> np.ndarray:
        chosen = rng.integers(0, kinds + 1, (samples, STEPS))
        return np.eye(kinds + 1, dtype=np.float32)[chosen][..., :kinds]

    return draw


def _first(x: np.ndarray) -> np.ndarray:
    """Return whether B comes before A, 0 if neither comes."""
    place = np.where(x > 0, np.arange(STEPS)[:, None], STEPS).min(axis=1)
    return (place[:, 1] < place[:, 0]).astype(int)


_OPPOSITE = np.array([[-1.0, 1.0], [1.0, -1.0]])
_CIRCUITS = {
    # Whether the number of ones is odd: s' = s xor x = relu(s + x) − 2·relu(s + x − 1).
    "parity": _Circuit(
        kernel=np.array([[1.0, 1.0]]),
        recurrent=np.array([[1.0, 1.0], [-2.0, -2.0]]),
        bias=np.array([0.0, -1.0]),
        out=np.array([[-1.0, 1.0], [2.0, -2.0]]),
        out_bias=np.array([0.5, -0.5]),
        activation="relu",
        draw=lambda samples, rng: rng.integers(0, 2, (samples, STEPS, 1)).astype(np.float32),
        answer=lambda x: x[..., 0].sum(axis=1).astype(int) % 2,
    ),
    # Whether there are more tokens A than B: two sums, compared.
    "counter": _Circuit(
        *(np.eye(2), np.eye(2), np.zeros(2), _OPPOSITE, np.array([0.5, -0.5]), "relu", _tokens(2)),
        answer=lambda x: (x[..., 0].sum(axis=1) > x[..., 1].sum(axis=1)).astype(int),
    ),
    # Which of A and B comes first: two latches that block each other.
    "first of kind": _Circuit(
        *(np.eye(2), -2.0 * _OPPOSITE, np.zeros(2), -_OPPOSITE, np.array([0.25, -0.25])),
        *("hard_tanh", _tokens(2), _first),
    ),
}
CIRCUITS = (*_CIRCUITS, "counter, LSTM")
"""Names of the circuits."""


def plant(name: str, dead: int, rng: int) -> Planted:
    """Return a network with one of `CIRCUITS` among dead units.

    `dead` is their number, a multiple of 4: half twins, a quarter stuck, a quarter spectators.
    """
    generator = np.random.default_rng(rng)
    if name == "counter, LSTM":
        return _plant_lstm(dead, generator)
    circuit = _CIRCUITS[name]
    inputs, live = circuit.kernel.shape
    units = live + dead
    weights = _with_dead_weight(circuit, dead, generator)
    rnn = layers.SimpleRNN(units, activation=circuit.activation, unroll=True, name="rnn")
    model = _model(rnn, inputs + _NOISE)
    model.set_weights(weights)
    kernel, recurrent, _, out, _ = weights
    planted = {
        "rnn/kernel": _marked(kernel, circuit.kernel),
        "rnn/recurrent_kernel": _marked(recurrent, circuit.recurrent),
        "logits": _marked(out, circuit.out),
    }
    return _planted(model, planted, dead, circuit)


def _planted(
    model: keras.Model, planted: dict[str, np.ndarray], dead: int, circuit: _Circuit
) -> Planted:
    """Return a network with a circuit, with the synapses of each sort of dead units."""
    inputs, live = circuit.kernel.shape
    rnn = model.layers[0].cell
    kernel, recurrent, out = rnn.kernel.shape, rnn.recurrent_kernel.shape, (live + dead, 2)
    a, b, stuck = _roles(live, dead)
    spectators = np.arange(live + dead // 2 + dead // 4, live + dead)
    sorts = {"twins": np.concatenate([a, b]), "stuck": stuck, "spectators": spectators}
    found = {}
    for sort, units in sorts.items():
        member = np.isin(np.arange(live + dead), units)
        to = np.tile(member, recurrent[1] // (live + dead))  # gate by gate
        to_circuit = np.tile(np.arange(live + dead) < live, recurrent[1] // (live + dead))
        found[sort] = {
            "rnn/kernel": np.broadcast_to(to, kernel),
            "rnn/recurrent_kernel": to[None] | (member[:, None] & to_circuit[None]),
            "logits": np.broadcast_to(member[:, None], out),
        }

    def draw(samples: int, rng: np.random.Generator) -> np.ndarray:
        noise = rng.integers(0, 2, (samples, STEPS, _NOISE))
        return np.concatenate([circuit.draw(samples, rng), noise], axis=-1).astype(np.float32)

    return Planted(model, planted, found, draw, lambda x: circuit.answer(x[..., :inputs]))


def _model(rnn: keras.Layer, inputs: int) -> keras.Model:
    source = keras.Input((STEPS, inputs), name="input")
    return keras.Sequential([source, rnn, layers.Dense(2, name="logits")])


def _marked(whole: np.ndarray, part: np.ndarray) -> np.ndarray:
    mask = np.zeros(whole.shape, bool)
    mask[: part.shape[0], : part.shape[1]] = part != 0
    return mask


def _with_dead_weight(circuit: _Circuit, dead: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the weights of a layer and of the logits: kernel, recurrent, bias, out, out bias."""
    kernel, recurrent, bias, out, out_bias, activation, *_ = circuit
    stuck_at = 0.0 if activation == "relu" else -1.0  # the outputs of stuck units
    inputs, live = kernel.shape
    a, b, shut = _roles(live, dead)
    units = live + dead
    new_kernel = like_planted(kernel, (inputs + _NOISE, units), rng)
    new_recurrent = like_planted(recurrent, (units, units), rng) * _wiring(live, units, rng)
    new_bias = np.concatenate([bias, rng.normal(0, 0.2, dead)])
    new_out = np.zeros((units, 2))
    for weights in (new_kernel, new_recurrent, new_bias):  # twins read the same
        weights[..., b] = weights[..., a]
    new_bias[shut] = -_STUCK * 10
    # What the circuit and the logits read: their own, opposite weights of twins, stuck units.
    for target, own in ((new_recurrent[:, :live], recurrent), (new_out, out)):
        target[:] = 0
        target[:live] = own
        target[a] = like_planted(own, target[a].shape, rng)
        target[b] = -target[a]
    new_out[shut] = like_planted(out, new_out[shut].shape, rng)
    if stuck_at == 0:  # otherwise nothing would compensate for the state before the first step
        new_recurrent[shut, :live] = like_planted(recurrent, (len(shut), live), rng)
    new_kernel[:, :live] = 0
    new_kernel[:inputs, :live] = kernel
    new_out_bias = out_bias - stuck_at * new_out[shut].sum(0)
    return [new_kernel, new_recurrent, new_bias, new_out, new_out_bias]


def _roles(live: int, dead: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the indices of the first twins, the second twins, and the stuck units."""
    twins = live + dead // 2
    first, second = np.arange(live, twins, 2), np.arange(live + 1, twins, 2)
    return first, second, np.arange(twins, twins + dead // 4)


def like_planted(planted: np.ndarray, shape: tuple, rng: np.random.Generator) -> np.ndarray:
    """Return random weights with the magnitudes of planted ones and random signs."""
    return rng.choice(np.abs(planted[planted != 0]), shape) * rng.choice([-1, 1], shape)


def _wiring(live: int, units: int, rng: np.random.Generator) -> np.ndarray:
    """Return which dead units read which: each reads two before it, so that values stay small."""
    reads = np.zeros((units, units))
    for unit in range(live + 2, units):
        earlier = np.arange(live, unit - (unit - live) % 2)  # not its own twin
        reads[rng.choice(earlier, min(2, len(earlier)), replace=False), unit] = 1
    return reads


def _plant_lstm(dead: int, rng: np.random.Generator) -> Planted:
    """Plant the counter in an LSTM: a token opens the input gate, the cell state counts."""
    # Unit 0 counts A, unit 1 counts B. Biases hold the forget and output gates open, and set the
    # candidate to a constant. A stuck unit's input gate is closed: its state stays at 0.
    live, inputs = 2, 2
    units = live + dead
    a, b, shut = _roles(live, dead)
    opened = np.array([2 * _STUCK])  # a token opens the input gate
    kernel = like_planted(opened, (inputs + _NOISE, 4, units), rng)
    recurrent = like_planted(opened, (units, 4, units), rng) * _wiring(live, units, rng)[:, None]
    bias = rng.normal(0, 0.2, (4, units))
    out = np.zeros((units, 2))
    for weights in (kernel, recurrent, bias):  # twins read the same
        weights[..., b] = weights[..., a]
    bias[0, shut] = -_STUCK * 100
    planted_kernel = np.zeros(kernel.shape, bool)
    kernel[:, :, :live], recurrent[:, :, :live] = 0, 0
    for unit in range(live):
        kernel[unit, 0, unit] = 2 * _STUCK
        planted_kernel[unit, 0, unit] = True
    # A step adds tanh(0.1), so that h = tanh(c) still distinguishes ten from nine.
    bias[:, :live] = np.array([-_STUCK, _STUCK, 0.1, _STUCK])[:, None]
    # What the circuit's gates and the logits read: opposite weights of twins, stuck units.
    out[:live] = [[-10.0, 10.0], [10.0, -10.0]]
    for target, own in ((recurrent[:, :, :live], opened), (out, out[:live])):
        target[a] = like_planted(own, target[a].shape, rng)
        target[b] = -target[a]
        target[shut] = like_planted(own, target[shut].shape, rng)
    model = _model(layers.LSTM(units, unroll=True, name="rnn"), inputs + _NOISE)
    shape = (-1, 4 * units)
    kernel, recurrent, out_bias = kernel.reshape(shape), recurrent.reshape(shape), [0.4, -0.4]
    model.set_weights([kernel, recurrent, bias.ravel(), out, np.array(out_bias)])
    planted = {
        "rnn/kernel": planted_kernel.reshape(shape),
        "rnn/recurrent_kernel": np.zeros((units, 4 * units), bool),
        "logits": _marked(out, out[:live]),
    }
    return _planted(model, planted, dead, _CIRCUITS["counter"])
