"""checkpoint: run a function and keep its inputs only; run it again in backward, and see that it does the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name as _named

from tapejax.checkpointing.blame import Surroundings, first_difference
from tapejax.checkpointing.digest import digest_of, same
from tapejax.checkpointing.moment import Moment
from tapejax.checkpointing.run import RunTape, Trail, reads_of, run_on
from tapejax.checkpointing.saved import Saved
from tapejax.checkpointing.traced import checkpoint_traced, policy_of
from tapejax.engine import backward as engine
from tapejax.errors import ArgumentError, ConsumedTapeError, ReplayError
from tapejax.ground.where import line_of, user_frame, user_line
from tapejax.ops.lift import is_tensor, lift
from tapejax.plan.plan import OpAction
from tapejax.tape.action import TapeAction, TensorId, next_sequence
from tapejax.tape.packed import force
from tapejax.tape.scope import Scope, current_scope
from tapejax.tensor.gradients import Gradients
from tapejax.tensor.tensor import Kind, Tensor, Tracer, make, with_id
from tapejax.transforms.recording import called, is_known_over_arrays

_tree = jax.tree_util
VERIFY = ("outputs", "all", False)


def checkpoint(
    function: Callable[..., Any], *inputs: Any, policy: Any = None, verify: str | bool = "outputs", **options: Any
) -> Any:
    """function(*inputs, **options), of which only the inputs are kept; backward runs it again.

    Inputs and results are pytrees; recorded Tensors that the function closes over get their gradients
    too. Both runs see the same random numbers and the same settings of jax.

    verify: "outputs" compares a digest of every result with that of the first run, "all" of every op
        on the way too; a difference is a ReplayError. False trusts the function.
    policy: what to keep besides the inputs: one of jax.checkpoint_policies, "everything", "nothing",
        "dots", "dots_no_batch", or a list of names given with checkpoint_name.

    >>> import tapejax as tj, tapejax.numpy as tnp
    >>> x = tj.tensor([0.0, 1.0], requires_grad=True)
    >>> with tj.Tape() as tape:
    ...     y = tj.checkpoint(lambda x: tnp.exp(tnp.sin(x)).sum(), x)
    >>> [action.op for action in tape]
    ['Checkpoint']
    >>> tape.backward(y)[x]
    Array([1.       , 1.2533807], dtype=float32)
    """
    if not (inputs or options):
        raise ArgumentError(
            "checkpoint needs at least one input: it keeps the inputs and nothing else",
            at=user_line(),
            fix="pass the Tensors that the function works on: checkpoint(function, x, ...)",
        )
    return _checkpoint(function, inputs, options, policy, verify)


def checkpoint_multi(
    function: Callable[..., Any], inputs: Sequence[Any], *, policy: Any = None, verify: str | bool = "outputs"
) -> Any:
    """checkpoint for a function of a list: `function(inputs)`, with one input at least.

    >>> import tapejax as tj
    >>> x, y = tj.tensor(2.0, requires_grad=True), tj.tensor(3.0, requires_grad=True)
    >>> grads = tj.backward(tj.checkpoint_multi(lambda inputs: inputs[0] ** 2 * inputs[1], [x, y]))
    >>> float(grads[x]), float(grads[y])
    (12.0, 4.0)
    """
    if not isinstance(inputs, (list, tuple)):
        raise ArgumentError(
            f"checkpoint_multi takes a list of inputs, not {type(inputs).__name__}",
            at=user_line(),
            fix="checkpoint_multi(function, [x, y]) for function([x, y]), checkpoint(function, x, y) for function(x, y)",
        )
    if not inputs:
        raise ArgumentError("checkpoint_multi needs at least one input", at=user_line(), fix="pass a list of Tensors")
    return _checkpoint(function, (list(inputs),), {}, policy, verify)


_name = lift(_named, name="checkpoint_name", static_argnames="name")


def checkpoint_name(x: Any, name: str) -> Any:
    """The same values with a name, by which a policy of checkpoint keeps them.

    >>> import tapejax as tj, tapejax.numpy as tnp
    >>> f = lambda x: tnp.cos(tj.checkpoint_name(tnp.sin(x), "hidden"))
    >>> x = tj.tensor(1.0, requires_grad=True)
    >>> tj.backward(tj.checkpoint(f, x, policy=["hidden"]))[x]
    Array(-0.40286..., dtype=float32)
    """
    return _name(x, name=name)


def _checkpoint(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], policy: Any, verify: Any) -> Any:
    verify = _checked(function, verify)
    policy = policy_of(policy)
    leaves, structure = _tree.tree_flatten((args, kwargs), is_leaf=is_tensor)
    scope = current_scope()
    values = [leaf.held if is_tensor(leaf) else leaf for leaf in leaves]
    traced = policy is not None or scope.bindings is not None or any(isinstance(value, Tracer) for value in values)
    if traced or is_known_over_arrays(function):
        return checkpoint_traced(function, leaves, structure, policy)
    moment = Moment()

    def over_tensors():
        if not scope.enabled or scope.tape.forgets:  # nobody goes back over it, or a run around it sees to that
            return function(*args, **kwargs)
        return _first_run(function, args, kwargs, leaves, structure, verify, moment, scope)

    def by_jax():
        moment.return_to()  # as if it had not been tried
        return checkpoint_traced(function, leaves, structure, policy)

    try:
        return called(function, over_tensors, by_jax)
    except _Traced:
        return by_jax()


class _Traced(Exception):
    """The function closes over something that is being traced."""


def _checked(function: Any, verify: Any) -> Any:
    if not callable(function):
        raise ArgumentError(f"checkpoint takes a function, not {type(function).__name__}", at=user_line())
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ArgumentError(
            f"{function.__name__} is a coroutine or a generator, which does not run when it is called",
            at=user_line(),
            fix="checkpoint an ordinary function; it may call asyncio.run",
        )
    verify = "outputs" if verify is True else verify
    if verify not in VERIFY:
        raise ArgumentError(f"unknown verify={verify!r}", at=user_line(), fix='verify="outputs", "all" or False')
    return verify


def _first_run(
    function: Any, args: Any, kwargs: Any, leaves: list[Any], structure: Any, verify: Any, moment: Moment, scope: Scope
) -> Any:
    around = scope.tape.trail if isinstance(scope.tape, RunTape) else None
    trail = Trail(detailed=verify == "all", outer=around)
    name = getattr(function, "__name__", type(function).__name__)
    surroundings = Surroundings(function) if verify else None
    tape = RunTape(trail, forgets=True, detail=scope.tape.detail, label=f"the first run of {name}")
    result = run_on(lambda: function(*args, **kwargs), tape)
    moment.over()
    results, out_structure = _tree.tree_flatten(result, is_leaf=is_tensor)
    if any(is_tensor(leaf) and isinstance(leaf.held, Tracer) for leaf in results):
        raise _Traced
    own = [is_tensor(leaf) and leaf.id.number >= trail.start for leaf in results]
    made: dict[int, Tensor] = {}  # by the number that a result had within the run
    action = None
    if any(mine and leaf.requires_grad for leaf, mine in zip(results, own, strict=True)):
        digests = digest_of([leaf.value if is_tensor(leaf) else leaf for leaf in results]) if verify else None
        action = CheckpointAction(
            Call(function, name, leaves, structure, scope.execution), moment, trail, results, out_structure, digests, surroundings, verify
        )  # fmt: skip
        action.epoch = scope.tape.epoch
    for leaf, mine in zip(results, own, strict=True):
        if mine and leaf.id.number not in made:
            made[leaf.id.number] = make(leaf.value, False) if action is None else action.output(leaf)
    if action is not None:
        scope.tape.append(action)
    outward = [made[leaf.id.number] if mine else leaf for leaf, mine in zip(results, own, strict=True)]
    return _tree.tree_unflatten(out_structure, outward)


class Call:
    """A function with its arguments, of which the Tensors may be packed away."""

    __slots__ = ("function", "leaves", "name", "structure", "tensors")

    def __init__(self, function: Any, name: str, leaves: list[Any], structure: Any, execution: Any):
        hooks = None if execution is None else execution.hooks
        self.function, self.name, self.structure = function, name, structure
        self.leaves = [None if is_tensor(leaf) else leaf for leaf in leaves]
        self.tensors: dict[int, tuple[Any, TensorId, Kind]] = {}
        for place, leaf in enumerate(leaves):
            if is_tensor(leaf):
                value = (
                    leaf.value
                    if hooks is None
                    else hooks.packed(
                        leaf.value,
                        is_leaf=leaf.is_leaf,
                        saved=Saved(f"checkpoint {name}", f"input[{place}]", user_line()),
                    )
                )
                self.tensors[place] = (value, leaf.id, leaf.kind)

    def __call__(self) -> Any:
        leaves = list(self.leaves)
        for place, (value, id, kind) in self.tensors.items():
            leaves[place] = with_id(force(value), id, kind)  # under its own identity: gradients go where people look
        args, kwargs = _tree.tree_unflatten(self.structure, leaves)
        return self.function(*args, **kwargs)


class Released:
    """A call whose arguments were let go."""

    __slots__ = ("name",)

    def __init__(self, name: str):
        self.name = name

    def __call__(self) -> Any:
        raise ConsumedTapeError(
            f"the checkpoint of `{self.name}` has let go of its inputs: its tape was consumed",
            fix="run the forward again, or keep the tape with backward(..., retain_tape=True)",
        )


class CheckpointAction(TapeAction):
    """What a checkpoint leaves on the tape.

    inputs: the recorded tensors that the first run read, given or closed over.
    outputs: the identities of the results that need a gradient.
    """

    __slots__ = (
        "__weakref__", "call", "digests", "epoch", "inputs", "kinds", "moment", "outputs", "places", "renamed", "sequence", "structure",
        "surroundings", "trail", "verify", "where",
    )  # fmt: skip
    reachable = True
    op = "Checkpoint"

    inputs: tuple[TensorId, ...]
    outputs: tuple[TensorId, ...]

    def __init__(self, call, moment, trail, results, structure, digests, surroundings, verify):
        self.call, self.moment, self.trail, self.structure = call, moment, trail, structure
        self.digests, self.surroundings, self.verify = digests, surroundings, verify
        given = [id.number for _, id, _ in call.tensors.values()]
        reads = trail.reads
        self.inputs = tuple(reads[n] for n in dict.fromkeys([*(n for n in given if n in reads), *reads]))
        self.kinds = [leaf.kind if is_tensor(leaf) else None for leaf in results]
        self.outputs, self.places = (), ()
        numbers: dict[int, int] = {}
        for place, leaf in enumerate(results):  # the same result may be returned twice
            if is_tensor(leaf) and leaf.requires_grad and leaf.id.number >= trail.start:
                numbers.setdefault(leaf.id.number, place)
        self.places = tuple(numbers.values())
        self.outputs = tuple(TensorId() for _ in numbers)
        self.renamed = dict(zip(numbers, self.outputs, strict=True))
        self.trail.reads = {}  # the inputs have it
        self.trail.outer = None
        self.where, self.sequence = user_frame(), next_sequence()
        self.epoch: Any = None

    def output(self, leaf: Tensor) -> Tensor:
        """A result of the run as the caller gets it."""
        id = self.renamed.get(leaf.id.number)
        if id is None:
            return make(leaf.value, False)
        return with_id(leaf.value, TensorId(id.number, self), leaf.kind)

    @property
    def line(self) -> str:
        return line_of(self.where)

    def name(self) -> str:
        return f"Checkpoint({', '.join(map(repr, self.inputs))})"

    def __repr__(self) -> str:
        show = lambda ids: " ".join(f"%{id.number}" for id in ids)
        return f"{show(self.outputs)} = checkpoint {self.call.name} {show(self.inputs)}"

    # -- backward ----------------------------------------------------------------------------------

    def release(self) -> None:
        self.call = Released(self.call.name)

    def backward(self, grads: Gradients) -> None:
        self._go_back(grads, None)

    def backward_in_steps(self, grads: Gradients, step: Any, *, through: bool) -> None:
        """backward over Tensors, recorded action by action; through: the second run is recorded as well."""
        self._go_back(grads, step, through=through)

    def _go_back(self, grads: Gradients, step: Any, *, through: bool = False) -> None:
        cts = [grads.sums.get(id.number) for id in self.outputs]
        if all(ct is None for ct in cts):
            return
        scope = current_scope()
        trail = Trail(detailed=self.verify == "all", places=True)
        tape = RunTape(trail, forgets=False, detail=scope.tape.detail, label=f"the second run of {self.call.name}")
        if through:
            tape.forked_from = scope.tape.fork().forked_from
        with self.moment.settings():
            with self.moment.randomness():
                result = run_on(self.call, tape)
            roots = self._checked(result, trail, tape)
            del result  # from here on nothing but the actions holds what was computed, and they go one by one
            if through:
                actions = list(tape.actions)
                scope.tape.merge([tape])
            else:
                actions = tape.take_all(by=f"the backward of {self!r}")
            starts = dict(zip(roots, cts, strict=True))
            del cts
            self._pull(actions, starts, grads, trail, step)

    def _pull(self, actions: list[Any], starts: dict[int, Any], grads: Gradients, trail: Trail, step: Any) -> None:
        """Go back over the second run, no further than its inputs, as if its actions were on the outer tape."""
        told = all(action.inputs is not None and action.outputs is not None for action in actions)
        wanted = {id.number for id in self.inputs} if told else None
        inner = Gradients()
        if type(grads) is not Gradients:  # somebody's own kind, who wants to see every insert
            inner.sums = {number: ct for number, ct in starts.items() if ct is not None}
            engine.go_back(actions, inner, wanted, step=step, since=trail.start)
            for number, gradient in inner.sums.items():
                if number < trail.start:
                    grads.insert(TensorId(number), gradient)
            return
        # What is there already moves over: sums are then made in the same order as without a checkpoint, and nobody
        # holds an old one.
        sums = grads.sums
        moving = list(sums) if wanted is None else [number for number in wanted if number in sums]
        inner.sums = {number: sums.pop(number) for number in moving}
        inner.sums.update((number, ct) for number, ct in starts.items() if ct is not None)
        starts.clear()
        try:
            engine.go_back(actions, inner, wanted, step=step, since=trail.start)
        finally:
            sums.update((number, gradient) for number, gradient in inner.sums.items() if number < trail.start)

    def _checked(self, result: Any, trail: Trail, tape: RunTape) -> list[int]:
        """The numbers of the results that cotangents belong to; ReplayError if the second run was another one."""
        leaves, structure = _tree.tree_flatten(result, is_leaf=is_tensor)
        if structure != self.structure:
            raise self._error(f"returned another structure: {structure}, not {self.structure}", trail)
        kinds = [leaf.kind if is_tensor(leaf) else None for leaf in leaves]
        for place, (kind, before) in enumerate(zip(kinds, self.kinds, strict=True)):
            if kind is not before and kind != before:
                raise self._error(f"result {place} is {kind or 'no Tensor'}, and was {before or 'no Tensor'}", trail)
        if self.verify:
            for action in tape.actions:
                if type(action) is not OpAction:
                    for id in reads_of(action):
                        trail.read(id)
            if trail.reads.keys() != {id.number for id in self.inputs}:
                raise self._error(_other_reads(self.inputs, trail.reads), trail)
            if self.verify == "all" and first_difference(self.trail, trail) is not None:
                raise self._error("an op on the way differs", trail)
            digests = digest_of([leaf.value if is_tensor(leaf) else leaf for leaf in leaves])
            for place, (before, after) in enumerate(zip(self.digests, digests, strict=True)):
                if not same(before, after):
                    raise self._error(f"the values of result {place} differ", trail)
        return [leaves[place].id.number for place in self.places]

    def _error(self, what: str, trail: Trail) -> ReplayError:
        """The error, with the first op that differs and the name that changed, as far as they can be found."""
        changed = self.surroundings.changed() if self.surroundings is not None else []
        found = first_difference(self.trail, trail)
        if found is None and self.verify == "outputs":
            found = self._by_running_again()
        line, action = self.line, None
        if found is not None:
            action = f"op {found.index} of the run, {found.op}: {found.what}"
            line = found.line or line
        elif changed:
            line = changed[0][2]
            ops = [i for i in range(len(trail.ops)) if trail.line(i) == line]
            if ops:
                action = f"op {ops[0]} of the run, the first on that line"
        stories = "; ".join(story for _, story, _ in changed)
        more = "" if self.verify == "all" or found is not None else '; verify="all" names the first op that differs'
        return ReplayError(
            f"`{self.call.name}` ran again in backward and was not the same: {what}"
            + (f"; {stories}" if stories else "")
            + f" (checkpoint at {self.line})",
            at=line,
            action=action or repr(self),
            fix="a checkpointed function must do the same twice: give it what it reads as inputs, draw random numbers from "
            f"tapejax.random, keep no state in it{more}; verify=False trusts it",
        )

    def _by_running_again(self) -> Any:
        """Two more runs, looked at in detail: what differs between them differed before."""
        trails = []
        for _ in range(2):
            trail = Trail(detailed=True)
            tape = RunTape(trail, forgets=True, detail="ops", label="a run to find a difference")
            try:
                with self.moment.settings(), self.moment.randomness():
                    run_on(self.call, tape)
            except Exception:
                return None
            trails.append(trail)
        return first_difference(*trails)


def _other_reads(before: Sequence[TensorId], after: dict[int, TensorId]) -> str:
    old = {id.number for id in before}
    gone = [repr(id) for id in before if id.number not in after]
    new = [repr(id) for number, id in after.items() if number not in old]
    parts = [f"it read {', '.join(new)}, which it had not"] * bool(new) + [f"it did not read {', '.join(gone)}"] * bool(
        gone
    )
    return "; ".join(parts) + " (recorded Tensors from outside)"
