"""Small programs to be interrupted, as steps that can be gone on with, and their answers from jax.

A scenario is made with a seed, which gives its numbers. `attack()` runs its steps; `problem()` goes on from the step
that did not finish and tells what is wrong then; `whole()` runs one from the start.
"""

import jax
import jax.numpy as jnp
import numpy as np

import tapejax as tj
import tapejax.numpy as tnp


def leaf(value):
    return tj.tensor(value, requires_grad=True)


def alike(got, expected, rtol=2e-4, atol=2e-5):
    """As np.allclose, in plain Python: a `__del__` that sets a context variable breaks numpy's (in CPython 3.11)."""
    got, expected = np.asarray(getattr(got, "value", got)), np.asarray(expected)
    pairs = zip(got.ravel().tolist(), expected.ravel().tolist())
    return got.shape == expected.shape and all(abs(a - b) <= atol + rtol * abs(b) for a, b in pairs)


def forward(n, x, w):
    h = n.tanh(x @ w)
    y = h * x + 0.5
    return h, y, (y * y).sum()


def second(x, w):
    gradient = jax.grad(lambda x, w: forward(jnp, x, w)[2], (0, 1))
    return jax.grad(lambda x, w: sum((g * g).sum() for g in gradient(x, w)), (0, 1))(x, w)


@jax.jit
def judge(x, w):
    h, y, loss = forward(jnp, x, w)
    gx, gw = jax.grad(lambda x, w: forward(jnp, x, w)[2], (0, 1))(x, w)
    sx, sw = second(x, w)
    return {
        "h": h, "y": y, "loss": loss, "gx": gx, "gw": gw, "sx": sx, "sw": sw,
        "new": x - 0.1 * gx, "before": jnp.sin(x) * w, "seen": jnp.exp(x),
    }  # fmt: skip


class Scenario:
    """Leaves x and w; `before` is not looked at yet when the attack starts, `seen` is."""

    steps: tuple = ()
    answers: tuple = ()  # what `judge` knows about names in `self.have`

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        x, w = (0.7 * rng.standard_normal(shape).astype("f") for shape in [(3,), (3, 3)])
        self.expected = {name: np.asarray(value) for name, value in judge(x, w).items()}
        self.tape = tj.Tape()
        self.x, self.w = leaf(x), leaf(w)
        self.have, self.done, self.typed = {}, 0, None
        self.seen = tnp.exp(self.x)
        self.seen.numpy()
        self.before = tnp.sin(self.x) * self.w
        self.prepare()

    def prepare(self):
        """What comes before the attack."""

    def attack(self):
        while self.done < len(self.steps):
            self.steps[self.done](self)
            self.done += 1

    def wrong(self, name, value):
        if alike(value, self.expected[name]):
            return None
        got = np.asarray(getattr(value, "value", value))
        return f"{name} is {got.tolist()} instead of {self.expected[name].tolist()}"

    def problem(self):
        """After an interrupt: go on, then compare everything. A typed error is an answer, wrong numbers are none."""
        for name in ("seen", "before"):
            problem = self.wrong(name, getattr(self, name))
            if problem:
                return f"made before the interrupt: {problem}"
        started = self.done
        try:
            self.attack()
        except tj.errors.MissingGradientError as error:
            return f"going on from step {started}: backward left a gradient out: {error}"
        except tj.TapejaxError as error:
            self.typed = error
        for name in self.answers:
            if name in self.have:
                problem = self.wrong(name, self.have[name])
                if problem:
                    return f"going on from step {started}: {problem}"
            elif self.typed is None:
                return f"going on from step {started}: no {name}"
        return None

    def whole(self):
        """A run without an interrupt: all must be there."""
        self.attack()
        for name in self.answers:
            problem = f"no {name}" if name not in self.have else self.wrong(name, self.have[name])
            if problem:
                return f"the next whole run: {problem}"
        return None

    # --- steps ---

    def record(self):
        self.h = tnp.tanh(self.x @ self.w)

    def record_more(self):
        self.y = self.h * self.x + 0.5

    def record_loss(self):
        self.loss = (self.y * self.y).sum()

    def record_all(self):
        self.h, self.y, self.loss = forward(tnp, self.x, self.w)

    def on_tape(self):
        with self.tape:
            self.record_all()

    def look(self):
        self.have["loss"] = self.loss.numpy()

    def look_around(self):
        self.have |= {"h": self.h.numpy(), "y": self.y.numpy()}

    def keep(self, grads):
        for name, tensor in (("gx", self.x), ("gw", self.w)):
            if name not in self.have:
                self.have[name] = grads[tensor]

    def back(self):
        self.keep(tj.backward(self.loss))

    def back_on_tape(self):
        self.keep(self.tape.backward(self.loss))

    def back_wrt(self):
        self.keep(tj.backward(self.loss, wrt=[self.x, self.w]))

    def back_retained(self):
        self.keep(self.tape.backward(self.loss, retain_tape=True))

    def back_again(self):
        self.have.pop("gx", None), self.have.pop("gw", None)
        self.back_on_tape()

    def back_recorded(self):
        with self.tape:
            grads = self.tape.backward(self.loss, create_graph=True)
            self.keep(grads)
            self.total = sum(((grads[t] * grads[t]).sum() for t in (self.x, self.w)), 0.0)

    def back_twice(self):
        grads = self.tape.backward(self.total)
        self.have |= {"sx": grads[self.x], "sw": grads[self.w]}

    def update(self):
        self.have["new"] = leaf(self.x.value - 0.1 * self.have["gx"]).numpy()


class Record(Scenario):
    steps = (Scenario.record, Scenario.record_more, Scenario.record_loss, Scenario.look_around, Scenario.back)
    answers = ("h", "y", "gx", "gw")


class RecordOnTape(Scenario):
    steps = (Scenario.on_tape, Scenario.look, Scenario.back_on_tape)
    answers = ("loss", "gx", "gw")


class Look(Scenario):
    prepare = Scenario.record_all
    steps = (Scenario.look, Scenario.look_around)
    answers = ("loss", "h", "y")


class Backward(Scenario):
    prepare = Scenario.record_all
    steps = (Scenario.back, Scenario.look_around)
    answers = ("gx", "gw", "h", "y")


class BackwardWrt(Backward):
    steps = (Scenario.back_wrt, Scenario.look_around)


class BackwardRetained(Scenario):
    prepare = Scenario.on_tape
    steps = (Scenario.back_retained, Scenario.back_again, Scenario.look)
    answers = ("gx", "gw", "loss")


class BackwardRecorded(Scenario):
    prepare = Scenario.on_tape
    steps = (Scenario.back_recorded, Scenario.back_twice, Scenario.look)
    answers = ("gx", "gw", "sx", "sw", "loss")


class Training(Scenario):
    steps = (Scenario.record_all, Scenario.back, Scenario.update, Scenario.look)
    answers = ("loss", "gx", "gw", "new")


SCENARIOS = {
    "record": Record,
    "record_on_tape": RecordOnTape,
    "look": Look,
    "backward": Backward,
    "backward_wrt": BackwardWrt,
    "backward_retained": BackwardRetained,
    "backward_recorded": BackwardRecorded,
    "training": Training,
}
