"""lift: a plain JAX function becomes an op over Tensors.

What a call needs is worked out once and kept in a Plan: the jitted forward, the jitted backward,
what to keep between them. A plan is found by the kinds of the arguments (aval, needs a gradient)
and the values of the static ones. Nothing on the way of a second call is decided again.
"""

from __future__ import annotations

import functools
import inspect
import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakSet, finalize, ref

import jax
import numpy as np

from tapejax.calculus.reverse import Options
from tapejax.errors import ArgumentError, DeletedError, DevicesError, TensorConversionError, UnknownLengthError, explain
from tapejax.fusion import block as block_module
from tapejax.fusion.block import CONCRETE, Block, RLock
from tapejax.fusion.later import Later
from tapejax.fusion.layout import forget, layouts, result_slot
from tapejax.fusion.sealed import CONSUMED, PENDING, Outcome, Sealed
from tapejax.fusion.short import UNHELD_LATER
from tapejax.ground import compat
from tapejax.ground.caches import register, table
from tapejax.ground.compat import DEVICE, PRECISION, PROMOTION, RANKS, X64
from tapejax.ground.placement import are_apart, devices_of, is_gone, several_devices, shardings_of
from tapejax.ground.where import INTERNAL, is_of_jax, line_of, user_frame, user_line
from tapejax.hooks import calls
from tapejax.hooks.registry import live as hooks
from tapejax.native import native
from tapejax.plan.executables import Executable, next_use
from tapejax.plan.plan import OpAction, Plan
from tapejax.plan.stepwise import Recorder
from tapejax.program.program import Eqn
from tapejax.tape import cuts
from tapejax.tape.action import TensorId, next_number, numbers
from tapejax.tape.modes import alarm
from tapejax.tape.scope import Scope, current_scope, running_loop, scope_variable, this_thread
from tapejax.tape.switch import Fusion, fusion
from tapejax.tape.tape import AmbientTape, Epoch, Tape
from tapejax.tensor.gradients import Gradients
from tapejax.tensor.tensor import Kind, Tensor, Tracer, array_of, make, with_id

is_tensor = lambda leaf: isinstance(leaf, Tensor)
_tree = jax.tree_util
new = object.__new__  # what is made for every op has no __init__ to call


# --- plans: bounded, inspectable, cleared on demand ------------------------------------------------

MAX_PLANS_PER_FUNCTION = 4096
known_ops: WeakSet[Lifted] = WeakSet()


def most_plans() -> int:
    """How many plans the op with most of them has."""
    return max((len(op.plans) for op in list(known_ops)), default=0)


def clear_plans_of_ops() -> None:
    for op in list(known_ops):
        with op.lock:
            op.plans.clear()


register("plans of an op", MAX_PLANS_PER_FUNCTION, most_plans, clear_plans_of_ops)


scalars = table("scalars", 4096)


def scalar(value: Any) -> Tensor:
    """A Python number as a weakly typed Tensor, made once: cheaper to pass than the number itself."""
    key = (type(value), value, X64.value)
    if not value or type(value) is complex:
        key = (*key, str(value))  # 0.0 and -0.0 are equal
    found = scalars.get(key)
    if found is None:
        with jax.ensure_compile_time_eval():
            found = make(jax.device_put(value), False)  # on no mesh, whichever is set now
        if not isinstance(found.held, Tracer) and value == value:
            scalars.keep(key, found)
    return found


NUMBERS = (bool, int, float, complex)
# Types of options that can stand in a key as they are; a float cannot: 0.0 and -0.0 are equal.
PLAIN_OPTIONS: set[type] = {int, bool, str, type(None)}
INTEGER = frozenset([int])


def plain_key(args: Any, kwargs: dict[str, Any], scope: Any) -> Any:
    """The key of a call with Tensors by position and plain options, quickly made; None if there is more to it."""
    key: list[Any] = [len(args)]
    for arg in args:
        kind = type(arg)
        if kind is Tensor:
            key.append(arg.kind)
        elif kind in PLAIN_OPTIONS:
            key += (kind, arg)
        elif kind is tuple and INTEGER.issuperset(map(type, arg)):
            key.append(arg)
        else:
            return None
    for name, value in kwargs.items():
        kind = type(value)
        if kind in PLAIN_OPTIONS:
            key += (name, kind, value)
        elif kind is tuple and INTEGER.issuperset(map(type, value)):
            key += (name, value)
        else:
            return None
    return (*key, scope.enabled, X64.value)


def tensor_key(tensors: Sequence[Tensor], scope: Any) -> tuple[Any, ...]:
    """The key of a call with nothing but Tensors."""
    return (*[tensor.kind for tensor in tensors], scope.enabled, X64.value)


class PlainCall:
    """What is called with Tensors and options: finds the plan, and applies it. What has none is `_general`."""

    plans: OrderedDict[Any, Plan]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        scope = current_scope()
        # The common calls: one or two Tensors, or nothing but Tensors.
        if not kwargs:
            key: Any = None
            if len(args) == 2:
                x, y = args
                if type(x) is Tensor and type(y) is Tensor:
                    key = (x.kind, y.kind, scope.enabled, X64.value)
            elif len(args) == 1:
                if type(args[0]) is Tensor:
                    key = (args[0].kind, scope.enabled, X64.value)
            elif all([type(arg) is Tensor for arg in args]):
                key = tensor_key(args, scope)
            plan = self.plans.get(key)
            if plan is not None:
                return apply_plan(plan, args, scope)
            if key is not None:
                return self._general(args, kwargs, scope)
        key = plain_key(args, kwargs, scope)
        plan = self.plans.get(key)
        if plan is not None:
            return apply_plan(plan, [arg for arg in args if type(arg) is Tensor], scope)
        return self._general(args, kwargs, scope, key)

    def _general(self, args: Any, kwargs: dict[str, Any], scope: Any, also: Any = None) -> Any:
        raise NotImplementedError


Call: type[PlainCall] = PlainCall if native is None else native.Call


class Lifted(Call):
    """A JAX function over Tensors; see `lift`."""

    def __init__(self, function, name, static_argnums, static_argnames, options):
        self.function = function
        self.name = name
        self.options = options
        self.static_argnums, self.static_argnames = static_argnums, static_argnames
        self.plans: OrderedDict[Any, Plan] = OrderedDict()
        self.lock = threading.Lock()
        functools.update_wrapper(self, function)
        known_ops.add(self)
        finalize(self, _forget, self.plans).atexit = False

    def _general(self, args: Any, kwargs: dict[str, Any], scope: Any, also: Any = None) -> Any:
        """Any call; its plan is filed under the key `also` too, if that fits."""
        leaves, structure = _tree.tree_flatten((args, kwargs), is_leaf=is_tensor)
        if not any(map(is_tensor, leaves)):
            return self.function(*args, **kwargs)
        tensors, key = self._classify(args, kwargs, leaves, structure, scope)
        plan = self.plans.get(key)
        if plan is None:
            plan = self._plan(args, kwargs, tensors, key, scope)
        self._file(plan, also, args, tensors)
        return apply_plan(plan, tensors, scope)

    def _file(self, plan: Plan, key: Any, args: Sequence[Any], tensors: Sequence[Tensor]) -> None:
        """File a plan under its `plain_key` too, if its operands are just the Tensors among the arguments."""
        if key is None or len(self.plans) >= MAX_PLANS_PER_FUNCTION:
            return
        given = [arg for arg in args if type(arg) is Tensor]
        if len(given) == len(tensors) and all(map(operator.is_, given, tensors)):
            self.plans[key] = plan

    def at(self, place: Any, tensors: Sequence[Tensor]) -> Any:
        """Call on Tensors only, recorded as coming from a place inside an opened program."""
        scope = current_scope()
        key = tensor_key(tensors, scope)
        plan = self.plans.get(key)
        if plan is None:
            plan = self._plan(tuple(tensors), {}, tensors, key, scope)
        return apply_plan(plan, tensors, scope, place)

    def static_leaves(self, args, kwargs) -> list[bool]:
        marks: list[bool] = []
        for position, arg in enumerate(args):
            n = len(_tree.tree_leaves(arg, is_leaf=is_tensor))
            marks += [position in self.static_argnums] * n
        for name in sorted(kwargs):
            n = len(_tree.tree_leaves(kwargs[name], is_leaf=is_tensor))
            marks += [name in self.static_argnames] * n
        return marks

    def _classify(self, args, kwargs, leaves, structure, scope):
        """The dynamic leaves as Tensors, and the key of the plan."""
        tensors: list[Tensor] = []
        key: list[Any] = [structure, *tensor_key((), scope)]
        for leaf, static in zip(leaves, self.static_leaves(args, kwargs), strict=True):
            if isinstance(leaf, Tensor):
                if static:
                    raise ArgumentError(
                        f"a static argument of {self.name} is a Tensor", at=user_line(), fix="pass a plain number"
                    )
                tensors.append(leaf)
                key.append(leaf.kind)
            elif static or not is_data(leaf):
                key.append((type(leaf), _hashable(leaf, self.name)))
            else:
                leaf = as_tensor(leaf)
                tensors.append(leaf)
                key.append(leaf.kind)
        return tensors, tuple(key)

    def _plan(self, args, kwargs, tensors, key, scope) -> Plan:
        leaves, structure = _tree.tree_flatten((args, kwargs), is_leaf=is_tensor)
        marks = self.static_leaves(args, kwargs)
        slots = [
            None if isinstance(l, Tensor) or (not s and is_data(l)) else l for l, s in zip(leaves, marks, strict=True)
        ]
        dynamic = [isinstance(l, Tensor) or (not s and is_data(l)) for l, s in zip(leaves, marks, strict=True)]
        function = self.function

        def flat(*values):
            given = iter(values)
            filled = [next(given) if d else slot for d, slot in zip(dynamic, slots, strict=True)]
            full_args, full_kwargs = _tree.tree_unflatten(structure, filled)
            return function(*full_args, **full_kwargs)

        name_after(flat, function)
        wrt = [scope.enabled and t.requires_grad for t in tensors]
        fusion.follow_processes()
        try:
            plan = Plan(self.name, flat, [t.aval for t in tensors], wrt, self.options)
        except Exception as error:
            action = f"{self._full_name()} of {' '.join(t.aval.str_short() for t in tensors)}"
            explain(error, action, of_jax=is_of_jax(function))
            raise
        plan.shown = _shown(function, args, kwargs)
        with self.lock:
            self.plans[key] = plan
            if not kwargs and len(tensors) == len(args) and all(map(is_tensor, args)):
                self.plans[tensor_key(tensors, scope)] = plan
            while len(self.plans) > MAX_PLANS_PER_FUNCTION:
                self.plans.popitem(last=False)
        return plan

    def _full_name(self) -> str:
        return self.name

    def __get__(self, instance, owner=None):
        return self if instance is None else functools.partial(self, instance)

    def __getstate__(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return vars(self).copy(), {"plans": self.plans}  # for copies: that one may be no entry of vars

    def __repr__(self) -> str:
        count = len(set(self.plans.values()))  # one may be filed under two keys
        return f"<lifted {self.name}, {count} plan{'s' * (count != 1)}>"


def _forget(plans: OrderedDict[Any, Plan]) -> None:
    forget(plans.values())


def name_after(wrapper: Callable[..., Any], function: Callable[..., Any]) -> None:
    """What jax says of the wrapper's trace is about the function: its name, file and line. The parameters differ."""
    wrapper.__name__ = wrapper.__qualname__ = getattr(function, "__name__", type(function).__name__)
    wrapper.__wrapped__ = function  # type: ignore[attr-defined]
    wrapper.__signature__ = _VALUES  # type: ignore[attr-defined]


def _shown(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> str:
    """Options without which a line of the tape says too little: the exponent of a power, the axis of a sum."""
    if not any([isinstance(value, (int, tuple)) for value in (*args, *kwargs.values())]):
        return ""
    try:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return ""
    told = {name: given[name] for name in ("exponent", "axis") if isinstance(given.get(name), (int, tuple))}
    return "".join(f" {name}={value}" for name, value in told.items())


_VALUES = inspect.signature(lambda *values: None)


def apply_plan(plan: Plan, tensors: Sequence[Tensor], scope: Any, where: Any = None, checked: bool = False) -> Any:
    """Note a plan's call, or run it, and return Tensors in the function's own structure.

    where: the place inside an opened program, if not the user's line.
    checked: whatever is special about the scope or the plan has been seen to.
    """
    if (scope.special or plan.special or not fusion.everywhere) and not checked:
        return run_specially(plan, tensors, scope, where)
    tape = scope.tape
    block = tape.block
    if (
        block is None
        or block.closed
        or block.state != (X64.value, DEVICE.value, PRECISION.value, PROMOTION.value, RANKS.value)
    ):
        block = new_block(tape)
    if plan.settings is not block.settings:
        plan = plan.under(block.settings, tensors)
    key: list[Any] = [plan]
    for tensor in tensors:
        slot = tensor.slot if tensor.held is block else block.bring(tensor)
        if slot is None:
            return run_now(plan, tensors, scope, where)
        key.append(slot)
    others = None
    if plan.records:
        where = where or user_frame()
        if not plan.all_wrt:
            others = tuple([tensor.number for tensor, needs in zip(tensors, plan.wrt) if not needs])
    calls = block.calls
    index = len(calls)
    made: Any = new(Tensor)
    made.held = block
    made.slot = index
    made.identity = number = next_number()
    made.kind = plan.out_kinds[0]
    if plan.n_out == 1:
        call = (tuple(key), number, ref(made), where, others)
    else:
        made = _more(plan, block, index, made)
        call = (tuple(key), tuple([one.identity for one in made]), tuple([ref(one) for one in made]), where, others)
    calls.append(call)  # the one step by which a call is deferred
    if calls[index] is not call:
        _place(block, call, made)
    if plan.records:
        if not block.logged:
            tape.log(block)
    elif plan.drops:
        cuts.dropped(plan.name, tensors, [made.identity] if plan.n_out == 1 else [one.identity for one in made])
    if block.closed and block.missed(call):
        return run_now(plan, tensors, scope, where)
    if index >= block.last:
        block.closed = True
    return made if plan.bare else _tree.tree_unflatten(plan.structure, made if type(made) is list else [made])


def _more(plan: Plan, block: Block, index: int, made: Tensor) -> list[Tensor]:
    """All results of a call, the first of which is made."""
    several = [made]
    for position, kind in enumerate(plan.out_kinds[1:], 1):
        tensor = new(Tensor)
        tensor.held, tensor.slot, tensor.identity, tensor.kind = (
            block,
            result_slot(index, position),
            next_number(),
            kind,
        )
        several.append(tensor)
    return several


def _place(block: Block, call: tuple[Any, ...], made: Any) -> None:
    """Another op was deferred in between, by a signal handler or a finalizer: the results are in another place."""
    numbers = block.seal().number if block.closed else [one[1] for one in block.calls]
    index = numbers.index(call[1]) if call[1] in numbers else 0  # 0: it is missed, as will be seen
    for position, tensor in enumerate(made if type(made) is list else [made]):
        tensor.slot = result_slot(index, position)


def run_specially(plan: Plan, tensors: Sequence[Tensor], scope: Any, where: Any) -> Any:
    """A call that cannot just be deferred, or perhaps not."""
    if scope.bindings is not None:
        tensors = scope.bindings.resolve(tensors)
    if calls.attending and where is None and calls.opens(plan):
        return run_stepwise(plan, tensors, everything=True)
    if plan.records and (plan.stepwise or (where is None and scope.tape.detail == "primitives")):
        if where is not None:  # it was opened already, and cannot be opened further
            raise UnknownLengthError(
                f"a while loop of unknown length inside `{plan.name}` cannot be differentiated in reverse here",
                at=getattr(where, "line", None),
                action=plan,
                fix="run it eagerly on concrete values, outside of jit, vmap and shard_map, or use lax.scan",
            )
        return run_stepwise(plan, tensors)
    seen = calls.attending and calls.watches(plan.name, where)
    if seen or scope.execution is not None or not fusion.enabled or plan.effects or plan.moves or not plan.n_out:
        if plan.effects and scope.tape.block is not None:
            scope.tape.block.flush()  # so that a callback may look at whatever was computed before
        return run_now(plan, tensors, scope, where)
    if plan.draws:  # which numbers depends on more settings than others do
        block = scope.tape.block
        if block is not None and block.settings is not compat.Settings.now():
            new_block(scope.tape)
    return apply_plan(plan, tensors, scope, where or user_frame(), checked=True)


def run_now(plan: Plan, tensors: Sequence[Tensor], scope: Any, where: Any) -> Any:
    """Run a plan's forward at once: on tracers, for its effects, or because nothing is to be deferred."""
    values = [tensor.value for tensor in tensors]
    if are_apart(values) and not plan.moves:
        raise _apart(plan, tensors, values)
    if plan.settings is not compat.Settings.now():
        plan = plan.under(compat.Settings.now(), tensors)
    if plan.waits and not compat.is_tracing():
        results = _waited(plan, values, where or user_frame())
    else:
        try:
            results = plan.forward(*values)
        except RuntimeError as error:
            if any(map(is_gone, values)):
                raise DeletedError.of(f"an operand of {plan.name}", user_line(), plan) from error
            raise
    if plan.single:
        results = (results,)
    if not scope.enabled and scope.bindings is None and any(tensor.requires_grad for tensor in tensors):
        results = jax.lax.stop_gradient(results)  # no_grad holds for whoever differentiates a traced program too
    tape, execution = scope.tape, scope.execution
    where = where or user_frame()
    if tape.observer is not None and scope.bindings is None:
        tape.observer(plan, tensors, results, where)
    numbers = tuple([next_number() for _ in range(plan.n_out)])
    action = None
    if plan.records and not tape.forgets:
        kept = plan.keep((*values, *results))
        if execution is not None:
            kept = execution.pack(plan, tensors, kept)
        shardings = (_all_shardings if plan.moves else shardings_of)(plan.pick_wrt(values))
        source = compat.source_now() if compat.is_staged(values) else None
        ids = [tensor.id for tensor in tensors]
        action = OpAction(plan, ids, numbers, kept, where, tape.epoch, shardings, source)
        tape.append(action)
    made = packed(plan, results, numbers, action)
    if plan.drops:
        cuts.dropped(plan.name, tensors, numbers)
    return calls.ran(plan.name, tensors, made, action, where) if calls.attending else made


def _all_shardings(values: Sequence[Any]) -> Any:
    """Where values lie that are moved: there their gradients go."""
    return None if any([isinstance(value, Tracer) for value in values]) else tuple([value.sharding for value in values])


def _apart(plan: Plan, tensors: Sequence[Tensor], values: Sequence[Any]) -> DevicesError:
    bound = [(tensor, devices) for tensor, value in zip(tensors, values) if (devices := devices_of(value)) is not None]
    named = lambda devices: ", ".join(map(str, sorted(devices, key=lambda device: device.id)))
    where = "; ".join([f"{t.id!r}, {t.aval.str_short()}, is on {named(devices)}" for t, devices in bound])
    return DevicesError(
        f"the operands of {plan.name} are on different devices: {where}",
        at=user_line(),
        fix="move one to where the other is: x.to(y.sharding)",
    )


def _waited(plan: Plan, values: Sequence[Any], where: Any) -> Any:
    """A plan that calls back, and its end: what goes wrong in the callback is raised here, with the op and its line."""
    try:
        return jax.block_until_ready(plan.forward(*values))
    except Exception as error:
        line = getattr(where, "line", None) or line_of(where)
        error.add_note(f"  at      {line}\n  action  {plan!r}, in a callback")
        raise


def packed(plan: Plan, results: Sequence[Any], numbers: Sequence[int], action: OpAction | None) -> Any:
    """Tensors in the function's own structure; extras follow the outputs, and are not among them."""
    made = [
        with_id(value, TensorId(number, action if kind.requires_grad else None), kind)
        for value, number, kind in zip(results, numbers, plan.out_kinds)
    ]
    return made[0] if plan.bare else _tree.tree_unflatten(plan.structure, made)


def new_block(tape: Any) -> Block:
    """Start a block on a tape; the one before it runs."""
    before = tape.block  # another thread that runs it takes it off the tape
    if before is not None:
        tape.block = None
        before.flush()
    block = tape.block = Block(tape)
    return block


if native is not None:  # what it works with
    native.install(
        {
            **{
                one.__name__: one
                for one in (Tensor, Kind, TensorId, Scope, Fusion, Tape, AmbientTape, Epoch, Block, RLock, Sealed, Outcome,
                            Plan, Executable, Gradients, Later, apply_plan, current_scope, new_block, several_devices,
                            compat.looks_for_nonfinite)
            },
            "running_loop": running_loop, "scope_variable": scope_variable, "this_thread": this_thread, "INTERNAL": INTERNAL,
            "CONCRETE": CONCRETE, "PLAIN_OPTIONS": PLAIN_OPTIONS, "scalars": scalars, "layouts": layouts, "numbers": numbers,
            "next_use": next_use, "fusion": fusion, "top_trace": compat.top_trace, "no_trace": compat.NO_TRACE,
            "settings": (X64, DEVICE, PRECISION, PROMOTION, RANKS), "all_settings": compat.Settings.STATES,
            "PENDING": PENDING, "CONSUMED": CONSUMED, "block_module": block_module, "cuts": cuts.log, "alarm": alarm, "hooks": hooks,
            "UNHELD_LATER": UNHELD_LATER,
        }
    )  # fmt: skip


def run_stepwise(plan: Plan, tensors: Sequence[Tensor], everything: bool = False) -> Any:
    """Record a plan's program equation by equation (see stepwise)."""

    def apply(key, function, operands, place, name):
        if isinstance(key, Eqn):
            key = _like(key)
        op = plan.steps_cache.get(key)
        if op is None:
            op = plan.steps_cache[key] = Lifted(function, name, set(), set(), plan.options)
        return op.at(place, operands)

    everything = everything or current_scope().tape.detail == "primitives"
    options = plan.options
    recorder = Recorder(
        apply, everything=everything, ignore_custom_rules=options.ignore_custom_rules, caller=user_frame(2)
    )
    return _tree.tree_unflatten(plan.structure, recorder.run(plan.flat_program, tensors))


def _like(eqn: Eqn) -> Any:
    """What equations that do the same have in common: they share an op, and are compiled once.

    One with a program inside, or one that was traced for a mesh, is like no other.
    """
    own = id(eqn.origin)  # alive as long as the plan's program is
    if eqn.is_structural:
        return own
    try:
        key = (eqn.primitive, *[(name, type(value), value) for name, value in sorted(eqn.params.items())])
        hash(key)
    except TypeError:
        return own
    return key


def is_data(leaf: Any) -> bool:
    """Whether a leaf is numbers (and so an operand), rather than an option."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, *NUMBERS))


def as_tensor(leaf: Any) -> Tensor:
    """A non-Tensor operand as a Tensor that needs no gradient."""
    if type(leaf) in NUMBERS:
        return scalar(leaf)
    if isinstance(leaf, Tensor):  # of a kind of its own: see tensor._Whole
        return leaf
    if isinstance(leaf, np.ndarray) and leaf.dtype == object:
        raise TensorConversionError(
            "an object array cannot be an operand", at=user_line(), fix="convert it to a numeric dtype first"
        )
    return make(array_of(leaf), False)


def _hashable(leaf: Any, name: str) -> Any:
    try:
        hash(leaf)
    except TypeError:
        raise ArgumentError(
            f"a {type(leaf).__name__} given to {name} is neither numbers nor hashable",
            at=user_line(),
            fix="pass arrays, numbers or hashable options",
        ) from None
    return leaf


def lift(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    ignore_custom_rules: bool = False,
    foreign: str = "jax",
) -> Any:
    """Make a plain JAX function an op over Tensors, recorded as one action.

    The lifted function takes Tensors, arrays or numbers anywhere in its arguments and returns
    Tensors in the function's own structure; given no Tensor at all, it is the function itself.
    Arguments named static, and leaves that are not numbers, are options: a new value makes a new
    plan. As with jax.jit, what the function closes over is read when a plan is made.

    ignore_custom_rules: differentiate the primal code of custom_jvp and custom_vjp functions.
    foreign: "error" refuses primitives that only their own jax rule can differentiate.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> norm = tj.lift(lambda x: jnp.sqrt(jnp.sum(x * x)))
    >>> x = tj.tensor([3.0, 4.0], requires_grad=True)
    >>> tj.backward(norm(x))[x]
    Array([0.6, 0.8], dtype=float32)
    """
    if function is None:
        return functools.partial(
            lift, name=name, static_argnums=static_argnums, static_argnames=static_argnames,
            ignore_custom_rules=ignore_custom_rules, foreign=foreign,
        )  # fmt: skip
    if not callable(function):
        raise ArgumentError(f"lift takes a function, not {type(function).__name__}", at=user_line())
    if foreign not in ("jax", "error"):
        raise ArgumentError(f"unknown policy foreign={foreign!r}", at=user_line(), fix='foreign="jax" or "error"')
    if name is not None and not isinstance(name, str):
        raise ArgumentError(f"the name of an op is a string, not {type(name).__name__}")
    nums, names = static_arguments(static_argnums, static_argnames)
    nums, names = _complete_static(function, nums, names)
    name = name or getattr(function, "__name__", type(function).__name__)
    return Lifted(function, name, nums, names, Options(ignore_custom_rules, foreign))


def static_arguments(static_argnums: Any, static_argnames: Any) -> tuple[set[int], set[str]]:
    """Static positions and names, each given as one or as several."""
    sorted_out = []
    for given, kind, what in ((static_argnums, int, "static_argnums"), (static_argnames, str, "static_argnames")):
        several = {given} if isinstance(given, kind) else given
        if (
            isinstance(several, str)
            or not isinstance(several, Iterable)
            or not all(isinstance(one, kind) for one in several)
        ):
            raise ArgumentError(f"{what}={given!r}", fix="positions are integers, names strings, or tuples of them")
        sorted_out.append(set(several))
    return sorted_out[0], sorted_out[1]


def _complete_static(function, nums: set[int], names: set[str]) -> tuple[set[int], set[str]]:
    """Static positions have names and static names have positions, when the signature tells."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return nums, names
    kinds = inspect.Parameter
    for position, parameter in enumerate(parameters):
        if parameter.kind not in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY):
            continue
        if position in nums:
            names = names | {parameter.name}
        elif parameter.name in names and parameter.kind is kinds.POSITIONAL_OR_KEYWORD:
            nums = nums | {position}
    return nums, names
