"""torch on CPU: eager, and torch.compile."""

from __future__ import annotations

from operator import methodcaller

from benchmarks import character
from benchmarks.contestants.base import Contestant, Entry
from benchmarks.words import EPSILON, Words, scan_by_loop
from benchmarks.workloads import Workload


class Torch(Contestant):
    name = "torch"
    layout = "NCHW"

    def __init__(self) -> None:
        import torch
        import torch.nn.functional as F

        torch.set_num_threads(1)
        if torch.get_num_interop_threads() != 1:  # may be set only once
            torch.set_num_interop_threads(1)
        self.torch = torch
        self.words = Words(
            tanh=torch.tanh,
            sigmoid=torch.sigmoid,
            relu=torch.relu,
            gelu=lambda x: F.gelu(x, approximate="tanh"),
            layer_norm=lambda x, scale, shift: F.layer_norm(x, scale.shape, scale, shift, EPSILON),
            attention=F.scaled_dot_product_attention,
            reshape=torch.reshape,
            transpose=torch.permute,
            conv=F.conv2d,
            max_pool=lambda x: F.max_pool2d(x, 2),
            image_mean=methodcaller("mean", (2, 3)),
            scan=scan_by_loop(lambda: self.words, torch.unbind, torch.stack),
            character_loss=lambda params, data: character.loss_in_torch(params, *data),
        )

    def prepare(self, workload: Workload) -> Entry:
        torch, words = self.torch, self.words
        given, data = self.arrays(workload)
        params = [torch.tensor(param, requires_grad=True) for param in given]
        data = [torch.tensor(x.astype("int64") if x.dtype.kind == "i" else x) for x in data]  # its type for ids
        run = self.made_ready(lambda params, data: workload.run(words, params, data))
        shape = run(params, data).shape
        seed = torch.ones(shape) if shape else None

        def gradient():
            out = run(params, data)
            return out, torch.autograd.grad(out, params, seed)

        return Entry(gradient, lambda: run(params, data))

    def made_ready(self, run):
        return run

    def numbers(self, result):
        out, gradients = result
        return out.detach().numpy(), [gradient.numpy() for gradient in gradients]


class TorchCompiled(Torch):
    name = "torch.compile"
    compiled = True
    longest_loop = 16

    def made_ready(self, run):
        self.torch._dynamo.reset()
        return self.torch.compile(run, dynamic=False)
