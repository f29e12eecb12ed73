"""Layers: values against formulas written out in NumPy, gradients against jax in float64, one action each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.nn as tnn
from tapejax.fusion.block import Block
from tapejax.nn import layers
from tapejax.nn.labels import known
from tests.some import one_in

rng = np.random.default_rng(3)
normal = lambda *shape: rng.standard_normal(shape)
LABELS = np.array([2, 0])

# function: operands (float ones are differentiated), options
CASES = {
    "layer_norm": ((normal(2, 4), normal(4), normal(4)), {}),
    "rms_norm": ((normal(2, 4), normal(4)), {"epsilon": 1e-3}),
    "group_norm": ((normal(2, 3, 4), 2, normal(4), normal(4)), {}),
    "batch_norm": ((normal(3, 2, 4), normal(4), normal(4) ** 2, normal(4), normal(4)), {"training": True}),
    "conv": ((normal(2, 5, 4, 2), normal(3, 2, 1, 6), normal(6)), {"strides": 2, "groups": 2}),
    "max_pool": ((normal(2, 4, 4, 3), 2), {"strides": 1, "padding": "SAME"}),
    "avg_pool": ((normal(2, 5, 3), 2), {"padding": [(1, 1)]}),
    "embedding": ((normal(4, 3), np.array([[1, 3], [1, 0]])), {}),
    "cross_entropy": ((normal(2, 3), LABELS), {"label_smoothing": 0.1}),
    "binary_cross_entropy": ((normal(5), (normal(5) > 0) * 1.0), {"reduction": "sum"}),
    "ssm_scan": ((normal(4, 2), normal(4, 2), normal(4, 2), normal(2)), {}),
    "selective_scan": (
        (normal(2, 4, 3), normal(2, 4, 3) ** 2, -normal(3, 2) ** 2, normal(2, 4, 2), normal(2, 4, 2), normal(3)), {}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", one_in(2, CASES))
def test_gradient_is_jaxs_and_the_layer_is_one_action(name):
    operands, options = CASES[name]
    is_float = lambda value: isinstance(value, np.ndarray) and value.dtype == np.float64
    places = [i for i, value in enumerate(operands) if is_float(value)]
    with jax.enable_x64(True):
        tensors = [tj.tensor(v, requires_grad=True) if is_float(v) else v for v in operands]
        with tj.Tape() as tape:
            out = getattr(tnn, name)(*tensors, **options)
        assert len(tape) == 1
        first = out[0] if isinstance(out, tuple) else out
        ct = jnp.asarray(np.random.default_rng(0).standard_normal(first.shape))
        grads = tape.backward(first, ct)

        def plain(*values):
            full = list(operands)
            for place, value in zip(places, values, strict=True):
                full[place] = value
            found = getattr(layers, name)(*full, **options)
            return found[0] if isinstance(found, tuple) else found

        value, pull = jax.vjp(jax.jit(plain), *[jnp.asarray(operands[i]) for i in places])
        np.testing.assert_allclose(first.value, value, rtol=1e-10)
        for place, want in zip(places, pull(ct), strict=True):
            found = grads.get(tensors[place])
            np.testing.assert_allclose(np.zeros(want.shape) if found is None else found, want, rtol=1e-8, atol=1e-12)


def test_layer_norm_by_its_formula():
    x, scale, ct = normal(3, 5), normal(5), normal(3, 5)
    with jax.enable_x64(True):
        t = tj.tensor(x, requires_grad=True)
        found = tj.backward(tnn.layer_norm(t, scale, epsilon=0.0), jnp.asarray(ct))[t]
    sigma = x.std(-1, keepdims=True)
    hat = (x - x.mean(-1, keepdims=True)) / sigma
    g = scale * ct
    want = (g - g.mean(-1, keepdims=True) - hat * (g * hat).mean(-1, keepdims=True)) / sigma
    np.testing.assert_allclose(found, want, rtol=1e-9)


def test_ssm_scan_by_its_recurrence_forwards_and_backwards():
    a, b, x, h0, dy = normal(6), normal(6), normal(6), normal(), normal(6)
    h, states = h0, []
    for t in range(6):
        h = a[t] * h + b[t] * x[t]
        states.append(h)
    lam, lams = 0.0, [0.0] * 6
    for t in reversed(range(6)):
        lam = dy[t] + (a[t + 1] * lam if t < 5 else 0.0)
        lams[t] = lam
    before = np.array([h0, *states[:-1]])
    with jax.enable_x64(True):
        tensors = [tj.tensor(v, requires_grad=True) for v in (a, b, x, h0)]
        out = tnn.ssm_scan(*tensors)
        grads = tj.backward(out, jnp.asarray(dy))
        np.testing.assert_allclose(out.value, states, rtol=1e-10)
        for tensor, want in zip(tensors, (lams * before, lams * x, lams * b, a[0] * lams[0]), strict=True):
            np.testing.assert_allclose(grads[tensor], want, rtol=1e-9)
        reverse = tnn.ssm_scan(jnp.asarray(a[::-1]), jnp.asarray(b[::-1]), jnp.asarray(x[::-1]), h0, reverse=True)
        np.testing.assert_allclose(reverse[::-1], states, rtol=1e-10)


def test_selective_scan_by_its_recurrence():
    x, delta, A, B, C, D = normal(4, 3), normal(4, 3) ** 2, -(normal(3, 2) ** 2), normal(4, 2), normal(4, 2), normal(3)
    h, ys = np.zeros((3, 2)), []
    for t in range(4):
        h = np.exp(delta[t][:, None] * A) * h + delta[t][:, None] * B[t] * x[t][:, None]
        ys.append(h @ C[t] + D * x[t])
    with jax.enable_x64(True):
        y, last = tnn.selective_scan(tj.tensor(x), delta, A, B, C, D)
    np.testing.assert_allclose(y.value, ys, rtol=1e-10)
    np.testing.assert_allclose(last.value, h, rtol=1e-10)


def test_batch_norm_keeps_running_statistics():
    x = normal(8, 3).astype("f")
    mean, var = np.zeros(3, "f"), np.ones(3, "f")
    y, new_mean, new_var = tnn.batch_norm(tj.tensor(x), mean, var, training=True, momentum=0.5)
    assert np.allclose(new_mean.value, 0.5 * x.mean(0), atol=1e-6)
    assert np.allclose(new_var.value, 0.5 + 0.5 * x.var(0), atol=1e-6)
    assert np.allclose(y.value.mean(0), 0, atol=1e-5)
    same, kept, _ = tnn.batch_norm(tj.tensor(x), mean, var)
    assert np.allclose(same.value, x, atol=1e-4)
    assert np.array_equal(kept.value, mean)


def test_cross_entropy_counts_what_it_is_told():
    logits = normal(3, 4).astype("f")
    t = tj.tensor(logits, requires_grad=True)
    where = np.array([True, False, True])
    loss = tnn.cross_entropy(t, np.array([0, 1, 2]), where=where)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert np.isclose(loss.value, -(np.log(p[0, 0]) + np.log(p[2, 2])) / 2, rtol=1e-5)
    want = (p - np.eye(4)[[0, 1, 2]]) * where[:, None] / 2
    assert np.allclose(tj.backward(loss)[t], want, atol=1e-6)
    one_hot = np.eye(4, dtype="f")[[0, 1, 2]]
    assert np.isclose(tnn.cross_entropy(t, one_hot, where=where).value, loss.value, rtol=1e-6)
    with pytest.raises(ValueError, match="reduction"):
        tnn.cross_entropy(t, np.array([0, 1, 2]), reduction="average")


def test_pooling_counts_padding_only_if_asked():
    x = np.arange(4, dtype="f").reshape(1, 4, 1)
    assert np.array_equal(tnn.avg_pool(tj.tensor(x), 2, padding=[(1, 1)]).value.ravel(), [0, 1.5, 3])
    assert np.array_equal(
        tnn.avg_pool(tj.tensor(x), 2, padding=[(1, 1)], count_padding=True).value.ravel(), [0, 1.5, 1.5]
    )
    assert np.array_equal(tnn.max_pool(tj.tensor(x), 2).value.ravel(), [1, 3])


def test_dropout_scales_what_it_keeps():
    x = tj.tensor(np.ones(1000, "f"), requires_grad=True)
    y = tnn.dropout(x, 0.25, key=jax.random.key(0))
    kept = np.asarray(y.value) > 0
    assert 0.7 < kept.mean() < 0.8
    assert np.allclose(y.value[kept], 1 / 0.75)
    assert np.allclose(tj.backward(y)[x], np.where(kept, 1 / 0.75, 0))
    tj.random.seed(1)
    assert not np.array_equal(tnn.dropout(x, 0.5).value, tnn.dropout(x, 0.5).value)


def test_attention_with_mask_and_causal():
    q, k, v = (normal(1, 4, 2, 3).astype("f") for _ in range(3))
    t = tj.tensor(q, requires_grad=True)
    out = tnn.dot_product_attention(t, k, v, is_causal=True)
    logits = np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(3)
    logits = np.where(np.tril(np.ones((4, 4), bool)), logits, -np.inf)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    want = np.einsum("bnts,bsnh->btnh", p / p.sum(-1, keepdims=True), v)
    assert np.allclose(out.value, want, atol=1e-5)
    mask = np.tril(np.ones((1, 1, 4, 4), bool))
    assert np.allclose(tnn.dot_product_attention(t, k, v, mask=mask).value, want, atol=1e-5)
    judge = jax.grad(lambda q: jax.nn.dot_product_attention(q, jnp.asarray(k), jnp.asarray(v), is_causal=True).sum())
    assert np.allclose(tj.backward(out)[t], judge(jnp.asarray(q)), atol=1e-5)


def test_initializers_are_jaxs():
    key = jax.random.key(0)
    assert np.array_equal(tnn.initializers.he_normal()(key, (3, 4)), jax.nn.initializers.he_normal()(key, (3, 4)))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([0, 3]), "labels from 0 to 3 for 3 classes"),
        (jnp.array([-1, 0]), "labels from -1 to 0 for 3 classes"),
        ([0, 7], "labels from 0 to 7"),
        (np.array([0.0, 1.0]), r"float32\[2\] for logits of \[2, 3\]"),
        (np.array([0, 1, 2]), r"int32\[3\] for logits of \[2, 3\]\n(.|\n)*integers of shape \[2\]"),
        (np.array([[0, 1]]), r"int32\[1, 2\] for"),
    ],
)
def test_labels_that_do_not_fit(labels, message):
    logits = tj.tensor(np.ones((2, 3), "f"), requires_grad=True)
    for given in (logits, logits.value):
        with pytest.raises(tj.TapejaxError, match=message) as caught:
            tnn.cross_entropy(given, labels)
        assert __file__ in caught.value.at
    with pytest.raises(tj.TapejaxError, match=message.replace("2, 3", "3, 2")):
        tnn.cross_entropy(logits.T, labels, axis=0)


def test_labels_that_are_not_known_or_do_not_count_are_not_looked_at():
    logits = tj.tensor(np.ones((2, 3), "f"), requires_grad=True)
    pending = tj.tensor([0, 1]) + 5
    assert known(pending) is None
    assert type(pending.held) is Block, "nothing is computed for a check"
    assert np.isnan(tnn.cross_entropy(logits, pending).item())
    assert np.isnan(jax.jit(lambda labels: tnn.cross_entropy(logits.value, labels))(np.array([0, 3])))
    padded = tnn.cross_entropy(logits, np.array([0, -100]), where=np.array([True, False]))
    assert np.isclose(padded.item(), np.log(3))
    np.testing.assert_allclose(padded.backward()[logits][1], 0)
    assert tnn.cross_entropy(logits, np.ones((2, 1), "f"), reduction="sum").shape == ()


def test_dropout_only_while_training():
    x = tj.tensor(np.ones(8, "f"))
    assert tnn.dropout(x, 0.5, training=False) is x
    assert set(tnn.dropout(x, 0.5, training=True).tolist()) <= {0.0, 2.0}
