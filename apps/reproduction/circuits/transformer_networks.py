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

import keras
import numpy as np
from keras import layers

from nnslicer_tf.zoo.transformer import AddPositions
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

Weights = dict[str, np.ndarray]


class _Head:
    """The planted (non-zero) weights of one head.

    Args:
        channels: Channels of the residual stream.
    """

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


def _draw_any(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, TOKENS, STEPS)


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


def _after(tokens: np.ndarray) -> int:
    return int(tokens[np.flatnonzero(tokens[:-1] == tokens[-1])[0] + 1])


_CIRCUITS: dict[str, tuple[Callable, Callable, Callable]] = {
    "copy": (_copy, _draw_any, lambda tokens: int(tokens[2])),
    "induction": (_induction, _draw_repeated, _after),
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
    weights, planted, sorts = (
        {"embed": weights},
        {"embed": planted},
        {("embed", "spectators"): spectators},
    )
    for number, head in enumerate(heads):
        _add_block(f"block{number}", head, dead, rng, (weights, planted, sorts))
    logits = np.zeros((channels, TOKENS))
    answers = np.flatnonzero(heads[-1].output.any(axis=0)[_ANSWER])
    logits[_ANSWER[answers], answers] = 1
    weights["logits"], planted["logits"] = logits, logits != 0
    model = _model(len(heads), channels, dead)
    # Set a model's weights; stuck units of an MLP get a bias that keeps them inactive.
    places = np.zeros(model.get_layer("places").vectors.shape)
    places[np.arange(STEPS), _PLACE] = 1
    model.get_layer("places").vectors.assign(places)
    for kernel, values in weights.items():
        layer, _, part = kernel.partition("/")
        owner = model.get_layer(layer)
        (getattr(owner, f"{part}_dense") if part else owner).kernel.assign(values)
        if layer.endswith("_mlp1"):
            units = values.shape[1]
            owner.bias.assign(np.where(np.arange(units) < units // 4 * 2, 0, _STUCK))

    def one_hot(samples: int, rng: np.random.Generator) -> np.ndarray:
        return np.eye(TOKENS, dtype=np.float32)[[draw(rng) for _ in range(samples)]]

    return Planted(
        model,
        planted,
        {
            sort: {k: sorts.get((k, sort), np.zeros(w.shape, bool)) for k, w in weights.items()}
            for sort in ("twins", "stuck", "spectators")
        },
        one_hot,
        lambda x: np.array([answer(tokens) for tokens in x.argmax(axis=-1)]),
    )


_Parts = tuple[Weights, Weights, dict[tuple[str, str], np.ndarray]]


def _add_block(name: str, head: _Head, dead: int, rng: np.random.Generator, parts: _Parts) -> None:
    """Add the weights of a block: attention with four heads, and an MLP."""
    weights, planted, sorts = parts
    channels = _LIVE + dead
    for part, own in (("query", head.query), ("key", head.key), ("value", head.value)):
        kernel = f"{name}/{part}"
        full = np.zeros((channels, 4, _FEATURES))
        full[:, _CIRCUIT] = own
        twin = like_planted(own, (channels, _FEATURES), rng)
        full[:, _TWINS[0]] = full[:, _TWINS[1]] = twin
        full[:, _SPECTATOR] = like_planted(own, (channels, _FEATURES), rng)
        weights[kernel], planted[kernel] = full, np.zeros(full.shape, bool)
        planted[kernel][:, _CIRCUIT] = own != 0
        for sort, places in (("twins", _TWINS), ("spectators", (_SPECTATOR,))):
            marks = np.zeros(full.shape, bool)
            marks[:, places] = True
            sorts[kernel, sort] = marks
    kernel = f"{name}/output"
    full = np.zeros((4, _FEATURES, channels))
    twin = like_planted(head.output, (_FEATURES, _LIVE), rng)
    full[_TWINS[0], :, :_LIVE], full[_TWINS[1], :, :_LIVE] = twin, -twin
    full[:, :, _LIVE:] = like_planted(head.output, (4, _FEATURES, dead), rng)
    full[_CIRCUIT, :, :_LIVE] = head.output[:, :_LIVE]
    weights[kernel], planted[kernel] = full, np.zeros(full.shape, bool)
    planted[kernel][_CIRCUIT] = head.output != 0
    marks = np.zeros(full.shape, bool)
    marks[list(_TWINS), :, :_LIVE] = True
    sorts[kernel, "twins"] = marks
    marks = np.zeros(full.shape, bool)
    marks[:, :, _LIVE:] = True
    sorts[kernel, "spectators"] = marks
    _add_mlp(name, dead, rng, parts)


def _add_mlp(name: str, units: int, rng: np.random.Generator, parts: _Parts) -> None:
    """Add an MLP of dead weight: a half of its units in pairs of twins, the other half stuck."""
    weights, planted, sorts = parts
    channels, pairs = _LIVE + units, units // 4
    reading = rng.choice([-1.0, 1.0], (channels, units))
    reading[:, pairs : 2 * pairs] = reading[:, :pairs]
    writing = rng.choice([-1.0, 1.0], (units, channels))
    writing[pairs : 2 * pairs, :_LIVE] = -writing[:pairs, :_LIVE]
    is_twin = np.arange(units) < 2 * pairs
    for kernel, full, twins in (
        (f"{name}_mlp1", reading, np.broadcast_to(is_twin, reading.shape)),
        (f"{name}_mlp2", writing, np.broadcast_to(is_twin[:, None], writing.shape)),
    ):
        weights[kernel], planted[kernel] = full, np.zeros(full.shape, bool)
        sorts[kernel, "twins"], sorts[kernel, "stuck"] = twins, ~twins


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
