"""The tapes over NumPy: HIPS autograd and MyGrad."""

from __future__ import annotations

import math

import numpy as np

from benchmarks.contestants.base import Contestant, Entry
from benchmarks.words import EPSILON, Words, scan_by_loop
from benchmarks.workloads import Workload


def composed(xp) -> dict:
    """Words that neither library has, from the functions both have."""

    def gelu(x):
        return 0.5 * x * (1 + xp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))

    def layer_norm(x, scale, shift):
        centred = x - xp.mean(x, axis=-1, keepdims=True)
        variance = xp.mean(centred * centred, axis=-1, keepdims=True)
        return centred / xp.sqrt(variance + EPSILON) * scale + shift

    return {"gelu": gelu, "layer_norm": layer_norm, "image_mean": lambda x: xp.mean(x, axis=(2, 3))}


def attention_with(softmax, transpose):
    def attention(q, k, v):
        return softmax(q @ transpose(k, (0, 2, 1)) * q.shape[-1] ** -0.5) @ v

    return attention


class Autograd(Contestant):
    name = "HIPS autograd"
    layout = "NCHW"

    def __init__(self) -> None:
        import autograd
        import autograd.numpy as xp
        from autograd.scipy.signal import convolve

        self.autograd = autograd

        def softmax(x):
            powers = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
            return powers / xp.sum(powers, axis=-1, keepdims=True)

        def conv(x, w):
            # A convolution turns its kernel round, and contracts x's channels with w's second axis.
            return convolve(x, w[:, :, ::-1, ::-1], axes=([2, 3], [2, 3]), dot_axes=([1], [1]), mode="valid")

        def max_pool(x):
            n, c, h, w = x.shape
            x = x[:, :, : h // 2 * 2, : w // 2 * 2]
            return xp.max(xp.reshape(x, (n, c, h // 2, 2, w // 2, 2)), axis=(3, 5))

        self.words = Words(
            tanh=xp.tanh,
            sum=xp.sum,
            mean=xp.mean,
            sigmoid=lambda x: 0.5 * (xp.tanh(0.5 * x) + 1),
            relu=lambda x: xp.maximum(x, 0),
            attention=attention_with(softmax, xp.transpose),
            reshape=xp.reshape,
            transpose=xp.transpose,
            conv=conv,
            max_pool=max_pool,
            scan=scan_by_loop(lambda: self.words, lambda x: [x[t] for t in range(x.shape[0])], xp.stack),
            **composed(xp),
        )

    def prepare(self, workload: Workload) -> Entry:
        params, data = self.arrays(workload)
        run = lambda params: workload.run(self.words, params, data)
        out = run(params)
        if np.shape(out) == ():
            step = self.autograd.value_and_grad(run)
            return Entry(lambda: step(params))
        seed = np.ones_like(out)

        def gradient():
            pull, out = self.autograd.make_vjp(run)(params)
            return out, pull(seed)

        return Entry(gradient)


class MyGrad(Contestant):
    name = "MyGrad"
    layout = "NCHW"

    def __init__(self) -> None:
        import mygrad as mg
        from mygrad.nnet.activations import relu, sigmoid, softmax
        from mygrad.nnet.layers import conv_nd, max_pool

        self.mg = mg

        def even(x):
            h, w = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
            return x if x.shape[2:] == (h, w) else x[:, :, :h, :w]

        self.words = Words(
            tanh=mg.tanh,
            sigmoid=sigmoid,
            relu=relu,
            attention=attention_with(softmax, mg.transpose),
            reshape=mg.reshape,
            transpose=mg.transpose,
            conv=lambda x, w: conv_nd(x, w, stride=1),
            max_pool=lambda x: max_pool(even(x), (2, 2), 2),
            scan=scan_by_loop(lambda: self.words, lambda x: [x[t] for t in range(x.shape[0])], mg.stack),
            **composed(mg),
        )

    def prepare(self, workload: Workload) -> Entry:
        mg, words = self.mg, self.words
        given, data = self.arrays(workload)
        params = [mg.tensor(param) for param in given]
        data = [mg.tensor(x, constant=True) for x in data]

        def gradient():
            out = workload.run(words, params, data)
            out.backward()  # seeds with ones; gradients of a former pass are dropped by the first use
            return out, [param.grad for param in params]

        return Entry(gradient, lambda: workload.run(words, params, data))

    def numbers(self, result):
        out, gradients = result
        return out.data, gradients
