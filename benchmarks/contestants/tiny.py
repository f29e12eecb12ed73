"""tinygrad on CPU. It is lazy too: what is timed ends when result and gradients are realized."""

from __future__ import annotations

import shutil
from operator import methodcaller

from benchmarks.contestants.base import Contestant, Entry
from benchmarks.words import EPSILON, Words, scan_by_loop
from benchmarks.workloads import Workload


class Tinygrad(Contestant):
    name = "tinygrad"
    layout = "NCHW"
    longest_loop = 16

    def __init__(self) -> None:
        from tinygrad import Device, Tensor

        if shutil.which("clang") is None:
            raise RuntimeError("its CPU device needs clang")
        self.Tensor, self.Device = Tensor, Device
        self.words = Words(
            tanh=Tensor.tanh,
            sigmoid=Tensor.sigmoid,
            relu=Tensor.relu,
            gelu=Tensor.gelu,
            layer_norm=lambda x, scale, shift: x.layernorm(eps=EPSILON) * scale + shift,
            attention=Tensor.scaled_dot_product_attention,
            reshape=Tensor.reshape,
            transpose=Tensor.permute,
            conv=Tensor.conv2d,
            max_pool=methodcaller("max_pool2d", (2, 2)),
            image_mean=methodcaller("mean", (2, 3)),
            scan=scan_by_loop(
                lambda: self.words, lambda x: [x[t] for t in range(x.shape[0])], lambda xs: Tensor.stack(*xs)
            ),
        )

    def prepare(self, workload: Workload) -> Entry:
        Tensor, words = self.Tensor, self.words
        given, data = self.arrays(workload)
        params = [Tensor(param).realize() for param in given]
        data = [Tensor(x).realize() for x in data]
        device = self.Device[self.Device.DEFAULT]
        shape = workload.run(words, params, data).shape
        seed = Tensor.ones(*shape).contiguous().realize() if shape else None

        def forward():
            workload.run(words, params, data).realize()
            device.synchronize()

        def gradient():
            out = workload.run(words, params, data)
            gradients = out.gradient(*params, gradient=seed)
            Tensor.realize(out, *gradients)
            device.synchronize()
            return out, gradients

        return Entry(gradient, forward)

    def numbers(self, result):
        out, gradients = result
        return out.numpy(), [gradient.numpy() for gradient in gradients]
