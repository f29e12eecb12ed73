"""A small transformer that tells the next word, over Tensors."""

import math

import jax
import numpy as np

import tapejax.nn as tnn
import tapejax.numpy as tnp

WORDS, LENGTH, WIDTH, BATCH = 16, 8, 32, 16
DROPPED = 0.1


def start_values() -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(0)
    matrix = lambda *shape: (drawn.normal(size=shape) / np.sqrt(shape[0])).astype("float32")
    return {
        "words": matrix(WORDS, WIDTH),
        "places": matrix(LENGTH, WIDTH),
        "query": matrix(WIDTH, WIDTH),
        "key": matrix(WIDTH, WIDTH),
        "value": matrix(WIDTH, WIDTH),
        "up": matrix(WIDTH, 4 * WIDTH),
        "down": matrix(4 * WIDTH, WIDTH),
        "out": matrix(WIDTH, WORDS),
    }


def normalise(x):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / tnp.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5)


def loss_of(p, words, targets, kept):
    """The mean loss of predicting each next word. kept: which elements are not dropped."""
    with jax.named_scope("embed"):
        x = p["words"][words] + p["places"]
    with jax.named_scope("attention"):
        h = normalise(x)
        query, key, value = h @ p["query"], h @ p["key"], h @ p["value"]
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(WIDTH)
        scores = tnp.where(np.tril(np.ones((LENGTH, LENGTH), bool)), scores, -1e9)
        x = x + tnn.softmax(scores, axis=-1) @ value
    with jax.named_scope("mlp"):
        x = x + tnn.gelu(normalise(x) @ p["up"]) @ p["down"]
    x = x * kept / (1 - DROPPED)
    scores = tnn.log_softmax(normalise(x) @ p["out"], axis=-1)
    return -(scores * targets).sum(axis=-1).mean()
