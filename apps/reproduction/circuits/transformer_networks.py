"""Transformers whose weights are set by hand to compute a known function.

Tokens are one-hot vectors. The residual stream has channels for the token, its position, the token
before it and the answer, and *dead* channels, which the circuit does not read. One head of each
block computes the function; its weights, and those that lead to it and from it, are *planted*. All
others are dead weight, which carries values but changes no output:

- *twins*: two heads, and pairs of units of the MLP, with the same random incoming weights, whose
  outgoing weights to the circuit's channels are opposite, so that they cancel;
- *stuck* units of the MLP, which are never active: random incoming and outgoing weights;
- *spectators*: a head, and all weights to dead channels, which only dead weight reads.

The magnitudes of dead weight are drawn from those of the planted weights of the same kernel, so
that they reveal nothing.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers

from nnslicer_tf.zoo.models import AddPositions
from reproduction.circuits.recurrent_networks import Planted, like_planted

STEPS = 10
TOKENS = 6
_KINDS = 3
_FEATURES = STEPS
_TOKEN = np.arange(TOKENS)
_PLACE = TOKENS + np.arange(STEPS)
_PREVIOUS = TOKENS + STEPS + np.arange(TOKENS)
_ANSWER = 2 * TOKENS + STEPS + np.arange(TOKENS)
_LIVE = 3 * TOKENS + STEPS
_CIRCUIT, _TWINS, _SPECTATOR = 0, (1, 2), 3
_STUCK = -1e6


class _Head:
    """The planted (non-zero) weights of one head, for so many channels of the residual stream."""

    def __init__(self, channels: int) -> None:
        self.query, self.key, self.value = np.zeros((3, channels, _FEATURES))
        self.output = np.zeros((_FEATURES, channels))

    def copies(self, source: np.ndarray, target: np.ndarray) -> None:
        """Make the head copy some channels of what it attends to into others."""
        features = np.arange(len(source))
        self.value[source, features] = 1
        self.output[features, target] = 1


def _copy(channels: int) -> list[_Head]:
    """The last position attends to the third and copies its token."""
    head = _Head(channels)
    head.query[_PLACE[-1], 0] = head.key[_PLACE[2], 0] = 8
    head.copies(_TOKEN, _ANSWER)
    return [head]


def _induction(channels: int) -> list[_Head]:
    """Each position copies the token before it; the last finds where its own token was copied."""
    before, match = _Head(channels), _Head(channels)
    for place in range(1, STEPS):
        before.query[_PLACE[place], place - 1] = 8
        before.key[_PLACE[place - 1], place - 1] = 8
    before.copies(_TOKEN, _PREVIOUS)
    match.query[_TOKEN, np.arange(TOKENS)] = 8
    match.key[_PREVIOUS, np.arange(TOKENS)] = 8
    match.copies(_TOKEN, _ANSWER)
    return [before, match]


def _first(channels: int) -> list[_Head]:
    """The last position attends to the first token of a kind and copies it."""
    head = _Head(channels)
    head.query[_PLACE[-1], 0] = 8
    head.key[_TOKEN[:_KINDS], 0] = 20
    head.key[_PLACE, 0] = 1.6 * (STEPS - np.arange(STEPS))
    head.copies(_TOKEN[:_KINDS], _ANSWER[:_KINDS])
    return [head]


def _draw_repeated(rng: np.random.Generator) -> np.ndarray:
    """Draw tokens of which the last occurs once earlier."""
    while True:
        tokens = rng.integers(0, TOKENS, STEPS)
        place = rng.integers(0, STEPS - 2)
        tokens[-1] = tokens[place]
        if (tokens[:-1] == tokens[-1]).sum() == 1:
            return tokens


def _draw_with_kind(rng: np.random.Generator) -> np.ndarray:
    """Draw tokens of which at least one is of the kind."""
    while True:
        tokens = rng.integers(0, TOKENS, STEPS)
        if (tokens < _KINDS).any():
            return tokens


_CIRCUITS: dict[str, tuple[Callable, Callable, Callable]] = {
    "copy": (_copy, lambda rng: rng.integers(0, TOKENS, STEPS), lambda tokens: int(tokens[2])),
    "induction": (
        _induction,
        _draw_repeated,
        lambda tokens: int(tokens[np.flatnonzero(tokens[:-1] == tokens[-1])[0] + 1]),
    ),
    "first of kind": (_first, _draw_with_kind, lambda tokens: int(tokens[tokens < _KINDS][0])),
}
CIRCUITS = tuple(_CIRCUITS)
"""Names of the circuits."""


def plant(name: str, dead: int, seed: int) -> Planted:
    """Return a transformer with a planted circuit."""
    build, draw, answer = _CIRCUITS[name]
    rng = np.random.default_rng(seed)
    channels = _LIVE + dead
    heads = build(channels)
    read = np.any([head.value[_TOKEN].any(1) | head.key[_TOKEN].any(1) for head in heads], axis=0)
    # The weights of the embedding; `read` says which tokens a circuit reads.
    weights = np.zeros((TOKENS, channels))
    weights[_TOKEN, _TOKEN] = 1
    planted = weights * read[:, None] != 0
    spectators = (weights != 0) & ~planted
    spectators[:, _LIVE:] = True
    weights[:, _LIVE:] = rng.choice([-1, 1], (TOKENS, channels - _LIVE))
    kernels = _Kernels()
    kernels.add("embed", weights, planted, spectators=spectators)
    for number, head in enumerate(heads):
        _add_block(kernels, f"block{number}", head, dead, rng)
    logits = np.zeros((channels, TOKENS))
    answers = np.flatnonzero(heads[-1].output.any(axis=0)[_ANSWER])
    logits[_ANSWER[answers], answers] = 1
    kernels.add("logits", logits, logits != 0)
    model = _model(len(heads), channels, dead)
    # Set a model's weights; stuck units of an MLP get a bias that keeps them inactive.
    places = np.zeros(model.get_layer("places").vectors.shape)
    places[np.arange(STEPS), _PLACE] = 1
    model.get_layer("places").vectors.assign(places)
    for kernel, values in kernels.weights.items():
        layer, _, part = kernel.partition("/")
        owner = model.get_layer(layer)
        (getattr(owner, f"{part}_dense") if part else owner).kernel.assign(values)
        if layer.endswith("_mlp1"):
            units = values.shape[1]
            owner.bias.assign(np.where(np.arange(units) < units // 4 * 2, 0, _STUCK))

    def one_hot(samples: int, rng: np.random.Generator) -> np.ndarray:
        return np.eye(TOKENS, dtype=np.float32)[[draw(rng) for _ in range(samples)]]

    def answers_of(x: np.ndarray) -> np.ndarray:
        return np.array([answer(tokens) for tokens in x.argmax(axis=-1)])

    return Planted(model, kernels.planted, kernels.dead, one_hot, answers_of)


class _Kernels:
    """The kernels of a network; which of their weights are planted, or of a sort of dead weight."""

    def __init__(self) -> None:
        self.weights: dict[str, np.ndarray] = {}
        self.planted: dict[str, np.ndarray] = {}
        self.dead: dict[str, dict[str, np.ndarray]] = {
            s: {} for s in ("twins", "stuck", "spectators")
        }

    def add(self, name: str, weights: np.ndarray, planted: Any = False, **dead: np.ndarray) -> None:
        """Add a kernel; the marks of its weights may have any shape that broadcasts to its own."""
        self.weights[name] = weights
        self.planted[name] = np.broadcast_to(planted, weights.shape)
        for sort, marks in self.dead.items():
            marks[name] = np.broadcast_to(dead.get(sort, False), weights.shape)


def _add_block(
    kernels: _Kernels, name: str, head: _Head, dead: int, rng: np.random.Generator
) -> None:
    """Add the weights of a block: attention with four heads, and an MLP of dead weight."""
    channels, heads = _LIVE + dead, np.arange(4)[:, None]
    for part in ("query", "key", "value"):
        own = getattr(head, part)
        twin, spectator = (like_planted(own, (channels, _FEATURES), rng) for _ in range(2))
        kernels.add(
            f"{name}/{part}",
            np.stack([own, twin, twin, spectator], axis=1),
            (heads == _CIRCUIT) & (own != 0)[:, None],
            twins=np.isin(heads, _TWINS),
            spectators=heads == _SPECTATOR,
        )
    # The outputs of the twins cancel in the channels of the circuit; other channels are dead.
    heads, is_dead = heads[:, None], np.arange(channels) >= _LIVE
    twin = like_planted(head.output, (_FEATURES, _LIVE), rng)
    live = np.stack([head.output[:, :_LIVE], twin, -twin, 0 * twin])
    full = np.concatenate([live, like_planted(head.output, (4, _FEATURES, dead), rng)], axis=2)
    planted, twins = (heads == _CIRCUIT) & (head.output != 0), np.isin(heads, _TWINS) & ~is_dead
    kernels.add(f"{name}/output", full, planted, twins=twins, spectators=is_dead)
    # The MLP: a half of its units in pairs of twins, the other half stuck.
    pairs = dead // 4
    reading = rng.choice([-1.0, 1.0], (channels, dead))
    reading[:, pairs : 2 * pairs] = reading[:, :pairs]
    writing = rng.choice([-1.0, 1.0], (dead, channels))
    writing[pairs : 2 * pairs, :_LIVE] = -writing[:pairs, :_LIVE]
    twins = np.arange(dead) < 2 * pairs
    kernels.add(f"{name}_mlp1", reading, twins=twins, stuck=~twins)
    kernels.add(f"{name}_mlp2", writing, twins=twins[:, None], stuck=~twins[:, None])


def _model(blocks: int, channels: int, units: int) -> keras.Model:
    inputs = keras.Input((STEPS, TOKENS), name="tokens")
    x = layers.Dense(channels, use_bias=False, name="embed")(inputs)
    x = AddPositions(name="places")(x)
    for number in range(blocks):
        name = f"block{number}"
        attention = layers.MultiHeadAttention(4, _FEATURES, use_bias=False, name=name)
        x = layers.Add(name=f"{name}_sum")([x, attention(x, x)])
        y = layers.Dense(units, activation="relu", name=f"{name}_mlp1")(x)
        y = layers.Dense(channels, use_bias=False, name=f"{name}_mlp2")(y)
        x = layers.Add(name=f"{name}_mlp_sum")([x, y])
    return keras.Model(inputs, layers.Dense(TOKENS, use_bias=False, name="logits")(x[:, -1]))
