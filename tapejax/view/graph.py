"""A tape as a graph: what the picture, the table and `to_dot` have in common."""

from __future__ import annotations

import linecache
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tapejax.hooks.regions import Regions
from tapejax.plan.plan import OpAction
from tapejax.tape.action import TapeAction, TensorId

REGIONS_ABOVE = 40  # actions; a tape with more is shown by regions
SMALL = 3  # actions: parts below that are joined with their neighbours
MANY = 40  # regions, or actions in a region: what one can still read


@dataclass(slots=True)
class TensorInfo:
    """What is known of a tensor: from the actions that read or made it, and the user's name for it."""

    number: int
    name: str = ""
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    leaf: bool = True
    wants_gradient: bool = True

    @property
    def label(self) -> str:
        return self.name or f"%{self.number}"

    @property
    def kind(self) -> str:
        return "" if self.shape is None else f"{short(self.dtype)}[{','.join(map(str, self.shape))}]"

    @property
    def size(self) -> str:
        return "" if self.shape is None else "×".join(map(str, self.shape)) or "scalar"


def short(dtype: str) -> str:
    """jax's short name of a dtype: f32."""
    for word, letter in (("bfloat", "bf"), ("float", "f"), ("complex", "c"), ("uint", "u"), ("int", "i")):
        if dtype.startswith(word):
            return letter + dtype[len(word) :]
    return dtype


@dataclass(slots=True)
class ActionInfo:
    """One line of the tape."""

    index: int
    op: str
    text: str
    inputs: list[int]
    outputs: list[int]
    line: str
    steps: tuple[tuple[str, int], ...]
    function: str = ""

    @property
    def place(self) -> str:
        """The line without its folders."""
        name = self.line.replace("\\", "/").rpartition("/")[2]
        return re.sub(r"(:\d+):\d+ \(.*\)$", r"\1", name)

    @property
    def loop(self) -> str:
        """The loop steps it belongs to: `scan[3]`."""
        return " ".join(f"{loop}[{step}]" for loop, step in self.steps)


@dataclass(slots=True)
class Region:
    """Consecutive actions that belong together."""

    label: str
    first: int
    last: int  # included


@dataclass(slots=True)
class Graph:
    actions: list[ActionInfo]
    tensors: dict[int, TensorInfo]
    regions: list[Region] = field(default_factory=list)  # empty: few enough to be shown as they are


Observed = Mapping[int, tuple[Sequence[TensorId], Sequence[TensorId]]]


def graph_of(
    actions: Sequence[TapeAction],
    names: Mapping[int, str] | None = None,
    first: int = 0,
    observed: Observed | None = None,
    gradients: Mapping[int, Any] | None = None,
) -> Graph:
    """The graph of some actions.

    names: what the user calls tensors, by number. first: the first action's place on the tape.
    observed: for actions that do not say what they read and made, what they were seen to.
    gradients: those that are known, which tell the shapes that actions do not.
    """
    names, observed = names or {}, observed or {}
    tensors: dict[int, TensorInfo] = {}

    def seen(id: TensorId) -> TensorInfo:
        if id.number not in tensors:
            tensors[id.number] = TensorInfo(id.number, names.get(id.number, ""))
        return tensors[id.number]

    infos = []
    for index, action in enumerate(actions, first):
        inputs: list[TensorId] = list(getattr(action, "inputs", None) or ())
        outputs: list[TensorId] = list(getattr(action, "outputs", None) or ())
        seen_in, seen_out = observed.get(index, ((), ()))
        inputs += [id for id in seen_in if id not in inputs]
        outputs += [id for id in seen_out if id not in outputs]
        for id in inputs:
            seen(id)
        for id in outputs:
            seen(id).leaf = False
        _shapes(action, inputs, outputs, tensors)
        infos.append(
            ActionInfo(
                index,
                op_of(action),
                str(action),  # named below, when all are known
                [id.number for id in inputs],
                [id.number for id in outputs],
                getattr(action, "line", "") or "",
                getattr(action, "steps", ()),
                function_of(action),
            )
        )
    for number, like in (gradients or {}).items():  # of the tensor's own shape and dtype
        if number in tensors and tensors[number].shape is None:
            tensors[number].shape, tensors[number].dtype = tuple(like.shape), str(like.dtype)
    for info in infos:
        info.text = _TENSOR.sub(lambda found: _name(found, tensors), info.text)
    return Graph(infos, tensors, regions_of(infos, actions) if len(infos) > REGIONS_ABOVE else [])


_TENSOR = re.compile(r"%(\d+)|TensorId\((\d+)\)")


def _name(found: re.Match[str], tensors: Mapping[int, TensorInfo]) -> str:
    number = int(found[1] or found[2])
    return tensors[number].label if number in tensors else found[0]


def op_of(action: TapeAction) -> str:
    """The op's short name: `tanh`, or the class of an action of one's own."""
    if isinstance(action, OpAction):
        return action.plan.name
    found = re.match(r"%\d+(?: %\d+)* = (.+?)(?: %\d|$)", repr(action))  # as the library's own are printed
    return found[1] if found else type(action).__name__


def function_of(action: TapeAction) -> str:
    """The name of the user's function that ran it."""
    where = getattr(action, "where", None)
    return where[0].co_name if isinstance(where, tuple) else ""


def source_line(action: TapeAction, line: str) -> str:
    """The text of the user's line, if it can be read."""
    found = re.fullmatch(r"(.+?):(\d+)(?::\d+)?(?: \(.*\))?", line)
    if found is None:
        return ""
    file, number = found.groups()
    where = getattr(action, "where", None)
    if isinstance(where, tuple):
        file = where[0].co_filename  # a notebook's cell is known by this name, and shown by another
    return linecache.getline(file, int(number)).strip()


def _shapes(
    action: TapeAction, inputs: list[TensorId], outputs: list[TensorId], tensors: dict[int, TensorInfo]
) -> None:
    def put(id: TensorId, value: Any, wants: bool) -> None:
        info = tensors[id.number]
        info.shape, info.dtype = tuple(value.shape), str(value.dtype)
        info.wants_gradient = wants

    if isinstance(action, OpAction):
        for id, aval, wants in zip(inputs, action.plan.examples, action.plan.wrt):
            put(id, aval, wants)
        for id, kind in zip(outputs, action.plan.out_kinds):
            put(id, kind.aval, kind.requires_grad)
    elif hasattr(action, "wanted") and hasattr(action, "kept"):  # a custom op that ran as Python
        results, values = action.kept
        for id, value, wants in zip(inputs, values, action.wanted):
            put(id, value, wants)
        for id, value in zip(outputs, results):
            put(id, value, True)


# --- regions -------------------------------------------------------------------------------------


def regions_of(infos: Sequence[ActionInfo], actions: Sequence[TapeAction]) -> list[Region]:
    """Cut a long tape where its author did (`tapejax.region`), and else where the code does: at each step of a loop, call
    of a function, turn of a Python loop."""
    known = Regions(actions)
    named = [known.of(action) for action in actions]
    goes_on = lambda i: (
        named[i] == named[i - 1]
        and (
            bool(named[i])
            or (_part(actions[i]) == _part(actions[i - 1]) and _place(actions[i]) >= _place(actions[i - 1]))
        )
    )
    pieces: list[tuple[int, int]] = []
    start = 0
    for i in range(1, len(infos) + 1):
        if i < len(infos) and goes_on(i):
            continue
        small = pieces and max(i - start, pieces[-1][1] - pieces[-1][0]) < SMALL
        small = small and not (named[start] or named[pieces[-1][0]])
        if small and i - pieces[-1][0] < 4 * SMALL:
            pieces[-1] = (pieces[-1][0], i)
        else:
            pieces += [(begin, min(begin + MANY, i)) for begin in range(start, i, MANY)]  # if it is too long by itself
        start = i
    most = max(
        MANY, min(3 * MANY, len(infos) // (2 * MANY))
    )  # of a very long tape more, so that each can still be read
    together = -(-len(pieces) // most)
    regions = []
    for i in range(0, len(pieces), together):
        chunk = pieces[i : i + together]
        names = list(dict.fromkeys("/".join(named[start]) for start, _ in chunk))
        label = " … ".join([names[0], names[-1]][: len(names)]) if all(names) else _label(infos, chunk, actions)
        regions.append(Region(label, infos[chunk[0][0]].index, infos[chunk[-1][1] - 1].index))
    return regions


def _part(action: TapeAction) -> Any:
    steps = getattr(action, "steps", ())
    where = getattr(action, "where", None)
    return steps or (where[0] if isinstance(where, tuple) else None)


def _place(action: TapeAction) -> int:
    where = getattr(action, "where", None)
    return where[1] if isinstance(where, tuple) else 0


def _label(infos: Sequence[ActionInfo], pieces: Sequence[tuple[int, int]], actions: Sequence[TapeAction]) -> str:
    """A loop's steps, the function that was called, the line of code, or else the ops."""
    heads = [infos[start] for start, _ in pieces]
    if heads[0].steps:
        first, last = heads[0].loop, heads[-1].loop
        return first if first == last or not last else f"{first} … {last}"
    inside = infos[pieces[0][0] : pieces[-1][1]]
    functions = {info.function for info in inside}
    name = functions.pop() if len(functions) == 1 else ""
    if name and not name.startswith("<") and name != infos[-1].function:  # not the function that it all happens in
        return name if len(heads) == 1 else f"{name} × {len(heads)}"
    lines = {info.line: place for place, info in enumerate(inside, pieces[0][0])}
    code = source_line(actions[next(iter(lines.values()))], next(iter(lines)))
    if code:
        return code + " …" * (len(lines) > 1)
    ops = list(dict.fromkeys(info.op for info in inside))
    return ", ".join(ops[:2]) + ", …" * (len(ops) > 2)


def to_dot(graph: Graph) -> str:
    """The graph in Graphviz's language: inputs left, results right."""
    quote = lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    lines = ["digraph tape {", "  rankdir=LR;", "  node [fontname=Helvetica, fontsize=11];"]
    for tensor in graph.tensors.values():
        if tensor.leaf:
            label = quote(f"{tensor.label}\n{tensor.kind}").replace("\n", "\\n")
            style = "" if tensor.wants_gradient else ", style=dashed"
            lines.append(f"  t{tensor.number} [shape=ellipse, label={label}{style}];")
    made: dict[int, int] = {}
    for action in graph.actions:
        lines.append(f"  a{action.index} [shape=box, label={quote(f'{action.index}: {action.op}')}];")
        for number in action.inputs:
            start = f"a{made[number]}" if number in made else f"t{number}"
            tensor = graph.tensors[number]
            label = f" [label={quote(f'%{number} {tensor.size}'.strip())}]" if number in made else ""
            lines.append(f"  {start} -> a{action.index}{label};")
        made.update(dict.fromkeys(action.outputs, action.index))
    return "\n".join([*lines, "}"]) + "\n"
