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
TURNS = 400  # regions in a bundle: of a longer loop one region is several turns


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
class Bundle:
    """A loop: the regions that are its turns, from the first to the last, which is included."""

    label: str
    first: int
    last: int


@dataclass(slots=True)
class Graph:
    actions: list[ActionInfo]
    tensors: dict[int, TensorInfo]
    regions: list[Region] = field(default_factory=list)  # empty: few enough to be shown as they are
    bundles: list[Bundle] = field(default_factory=list)  # of regions; those of none stand for themselves

    def units(self) -> list[tuple[int | None, list[int]]]:
        """What the overview shows, in order: a bundle with its regions, or None with a region of its own."""
        of = {
            region: number
            for number, bundle in enumerate(self.bundles)
            for region in range(bundle.first, bundle.last + 1)
        }
        found: list[tuple[int | None, list[int]]] = []
        for region in range(len(self.regions)):
            if of.get(region) is not None and found and found[-1][0] == of[region]:
                found[-1][1].append(region)
            else:
                found.append((of.get(region), [region]))
        return found


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
    regions, bundles = regions_of(infos, actions) if len(infos) > REGIONS_ABOVE else ([], [])
    return Graph(infos, tensors, regions, bundles)


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


def regions_of(infos: Sequence[ActionInfo], actions: Sequence[TapeAction]) -> tuple[list[Region], list[Bundle]]:
    """Cut a long tape where its author did (`tapejax.region`), and else where the code does: at each step of a loop, call
    of a function, turn of a Python loop. The steps of a loop of jax are one bundle, and so are the turns of a Python loop if
    there are too many to be shown one by one."""
    named = Regions(actions)
    pieces, names = _pieces(infos, actions, [named.of(action) for action in actions])
    # Of a very long tape more are shown, so that each can still be read.
    most = max(MANY, min(3 * MANY, len(infos) // (2 * MANY)))
    runs = _loops(infos, pieces)
    if len(runs) > most:
        runs = _turns(infos, actions, runs, names)
    loose = sum(not loop for loop, _ in runs)
    regions: list[Region] = []
    bundles: list[Bundle] = []
    for loop, group in _joined(runs, -(-loose // most)):
        begin = len(regions)
        together = -(-len(group) // TURNS) if loop else len(group)
        for i in range(0, len(group), together):
            chunk = group[i : i + together]
            own = list(dict.fromkeys(names[start] for start, _ in chunk))
            label = " … ".join([own[0], own[-1]][: len(own)]) if all(own) else _label(infos, chunk, actions)
            regions.append(Region(label, infos[chunk[0][0]].index, infos[chunk[-1][1] - 1].index))
        if loop:
            bundles.append(Bundle(loop, begin, len(regions) - 1))
    return regions, bundles


Piece = tuple[int, int]  # where some actions that belong together begin and end
Run = tuple[str, list[Piece]]  # what a loop is called, or nothing, and its pieces


def _pieces(
    infos: Sequence[ActionInfo], actions: Sequence[TapeAction], named: Sequence[Sequence[str]]
) -> tuple[list[Piece], dict[int, str]]:
    """The pieces, and what their author called them, by where they begin."""
    goes_on = lambda i: (
        named[i] == named[i - 1]
        and (
            bool(named[i])
            or (_part(actions[i]) == _part(actions[i - 1]) and _place(actions[i]) >= _place(actions[i - 1]))
        )
    )
    pieces: list[Piece] = []
    start = 0
    for i in range(1, len(infos) + 1):
        if i < len(infos) and goes_on(i):
            continue
        small = pieces and max(i - start, pieces[-1][1] - pieces[-1][0]) < SMALL
        small = small and not (named[start] or named[pieces[-1][0]] or infos[start].steps or infos[pieces[-1][0]].steps)
        if small and i - pieces[-1][0] < 4 * SMALL:
            pieces[-1] = (pieces[-1][0], i)
        else:
            pieces += [(begin, min(begin + MANY, i)) for begin in range(start, i, MANY)]  # if it is too long by itself
        start = i
    return pieces, {start: "/".join(named[start]) for start, _ in pieces}


def _loops(infos: Sequence[ActionInfo], pieces: Sequence[Piece]) -> list[Run]:
    """Each loop of jax with its steps; every other piece by itself."""
    found: list[tuple[str, list[Piece], list[int]]] = []  # the loop, its pieces, its steps
    for piece in pieces:
        loop, step = next(iter(infos[piece[0]].steps), ("", 0))
        known = found[-1] if found and loop and found[-1][0] == loop else None
        if known is None or (
            step in known[2] and step != known[2][-1]
        ):  # that step was there: another loop of this kind
            found.append((loop, [piece], [step]))
            continue
        known[1].append(piece)
        if step != known[2][-1]:
            known[2].append(step)
    count = lambda steps: f"{len(steps)} step{'s' * (len(steps) > 1)}"
    return [(f"{loop}: {count(steps)}" if loop else "", group) for loop, group, steps in found]


def _turns(
    infos: Sequence[ActionInfo], actions: Sequence[TapeAction], runs: Sequence[Run], names: Mapping[int, str]
) -> list[Run]:
    """Pieces of one label that follow each other, which a Python loop made, as one."""
    found: list[tuple[str, str, list[Piece]]] = []  # the loop's name, the label, the pieces
    for loop, pieces in runs:
        label = "" if loop or names[pieces[0][0]] else _label(infos, pieces, actions)
        if label and found and found[-1][1] == label:
            found[-1][2].extend(pieces)
        else:
            found.append((loop, label, list(pieces)))
    made: list[Run] = []
    for loop, label, pieces in found:
        if not loop and len(pieces) > SMALL:
            made.append((f"{label} × {len(pieces)}", pieces))
        else:
            made += [(loop, pieces)] if loop else [("", [piece]) for piece in pieces]
    return made


def _joined(runs: Sequence[Run], together: int) -> list[Run]:
    """Runs of one piece, so many at a time; loops as they are."""
    joined: list[Run] = []
    for loop, pieces in runs:
        if not loop and joined and not joined[-1][0] and len(joined[-1][1]) < together:
            joined[-1][1].extend(pieces)
        else:
            joined.append((loop, list(pieces)))
    return joined


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
