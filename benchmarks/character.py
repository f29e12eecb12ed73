"""The character model of a newcomer: two layers, width 64. In the functions of NumPy, and its twin in those of torch."""

from __future__ import annotations

from typing import Any

import numpy as np

VOCABULARY, WIDTH, HEADS, LENGTH, BATCH, LAYERS = 65, 64, 4, 64, 16, 2


def parameters(
    rng: np.random.Generator,
    vocabulary: int = VOCABULARY,
    width: int = WIDTH,
    length: int = LENGTH,
    layers: int = LAYERS,
) -> dict[str, np.ndarray]:
    shapes = {"token": (vocabulary, width), "position": (length, width), "head": (width, vocabulary)}
    for i in range(layers):
        shapes |= {f"qkv{i}": (width, 3 * width), f"out{i}": (width, width)}
        shapes |= {f"up{i}": (width, 4 * width), f"down{i}": (4 * width, width)}
    values = {name: 0.02 * rng.standard_normal(shape) for name, shape in shapes.items()}
    scales = ["final", *[f"{which}{i}" for i in range(layers) for which in ("before", "after")]]
    values |= {name: np.ones(width) for name in scales}
    return {name: value.astype("float32") for name, value in values.items()}


def batch(rng: np.random.Generator, length: int = LENGTH, size: int = BATCH, vocabulary: int = VOCABULARY) -> Any:
    """Ids, the ids that follow them, and the mask that hides what follows."""
    text = rng.integers(0, vocabulary, (size, length + 1)).astype("int32")
    return text[:, :-1], text[:, 1:], np.tril(np.ones((length, length), bool))


def loss(n: Any, p: dict[str, Any], ids: Any, targets: Any, mask: Any) -> Any:
    """The mean negative log likelihood; n: jax.numpy, or tapejax.numpy."""

    def norm(x, scale):
        centred = x - x.mean(-1, keepdims=True)
        return centred / n.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * scale

    def heads(x):
        return x.reshape(size, length, HEADS, width // HEADS).transpose(0, 2, 1, 3)

    (size, length), width = ids.shape, p["token"].shape[1]
    x = p["token"][ids] + p["position"][:length]
    for i in range(layers_of(p)):
        q, k, v = map(heads, n.split(norm(x, p[f"before{i}"]) @ p[f"qkv{i}"], 3, axis=-1))
        scores = n.where(mask, q @ k.transpose(0, 1, 3, 2) * (HEADS / width) ** 0.5, -1e9)
        weights = n.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ v
        x = x + mixed.transpose(0, 2, 1, 3).reshape(size, length, width) @ p[f"out{i}"]
        h = norm(x, p[f"after{i}"]) @ p[f"up{i}"]
        x = x + (0.5 * h * (1 + n.tanh(0.79788 * (h + 0.044715 * h * h * h)))) @ p[f"down{i}"]
    logits = norm(x, p["final"]) @ p["head"]
    logits = logits - logits.max(-1, keepdims=True)
    of_target = n.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return (n.log(n.exp(logits).sum(-1)) - of_target).mean()


def loss_in_torch(p: dict[str, Any], ids: Any, targets: Any, mask: Any) -> Any:
    """The same, by torch's own norm, attention, gelu and cross entropy."""
    import torch.nn.functional as F

    def norm(x, scale):
        return F.layer_norm(x, scale.shape, scale, None, 1e-5)

    def heads(x):
        return x.view(size, length, HEADS, width // HEADS).transpose(1, 2)

    (size, length), width = ids.shape, p["token"].shape[1]
    x = F.embedding(ids, p["token"]) + p["position"][:length]
    for i in range(layers_of(p)):
        q, k, v = map(heads, (norm(x, p[f"before{i}"]) @ p[f"qkv{i}"]).split(width, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(size, length, width) @ p[f"out{i}"]
        x = x + F.gelu(norm(x, p[f"after{i}"]) @ p[f"up{i}"], approximate="tanh") @ p[f"down{i}"]
    logits = norm(x, p["final"]) @ p["head"]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def layers_of(p: dict[str, Any]) -> int:
    return sum(name.startswith("qkv") for name in p)
