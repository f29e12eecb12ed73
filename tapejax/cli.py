"""The command line: `tapejax` and `python -m tapejax`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

EXAMPLES = """examples:
  tapejax verify                         check every rule against jax.vjp and finite differences
  tapejax verify --quick                 one sample of each rule, float64, first order
  tapejax verify --only sin,linalg       some primitives or families
  tapejax verify --against cpu           every rule on this GPU or TPU, against float64 on the CPU
  tapejax verify --html report.html      the table as a page
  tapejax verify train.py:loss           the gradient of a function of yours; train.py has inputs()
  tapejax verify train:loss --args '[0.5, 1.0], 2.0'
  tapejax show train.py:loss --primitives
  tapejax nonfinite train.py:loss        where a NaN or an infinity in its gradient was born
  tapejax coverage                       which primitives have a rule, are constant, or are refused
  tapejax coverage functions             which functions of jax are lifted, or plain and why
  tapejax disagreements                  where tapejax and the installed jax disagree, and who is right (minutes)

A function is named module:function or path/to/file.py:function. Its arguments come from --args, a Python
expression (a list of numbers is an array; jnp, np and jax are there), or from a function inputs() beside it.
Exit status: 0 right, or a matter of convention; 1 somebody is wrong; 2 undecided, or it could not be checked.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        status = options.run(options)
        sys.stdout.flush()
        return status
    except UsageError as error:
        print(f"tapejax {options.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # who reads has seen enough: `tapejax coverage | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to flush at exit
        return 0


class UsageError(Exception):
    """What the command line was given cannot be used; the message says why and what to do."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tapejax",
        description="A flight recorder for gradients: see, trust and check a gradient in JAX.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name, help=text, description=text, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        command.set_defaults(run=run)
        return command

    verify = add("verify", _verify, "check the rules of this installation on this device, or a function of yours")
    verify.add_argument("target", nargs="?", metavar="FUNCTION", help="module:function or file.py:function")
    verify.add_argument("--json", metavar="FILE", help="write all results to a file ('-' for standard output)")
    verify.add_argument("--html", metavar="FILE", help="write the report as a page of its own")
    rules = verify.add_argument_group("for the rules")
    rules.add_argument("--quick", action="store_true", help="one sample of each rule, float64, first order")
    rules.add_argument("--only", metavar="NAMES", help="primitives or families, separated by commas")
    rules.add_argument(
        "--against", choices=("jax", "cpu"), default="jax",
        help="jax.vjp and differences on this device (jax), or float64 on the CPU (cpu)",
    )  # fmt: skip
    own = verify.add_argument_group("for a function of yours")
    own.add_argument("--args", metavar="EXPRESSION", help="its arguments, as Python")
    own.add_argument("--order", type=int, default=1, help="check derivatives up to this order (1)")
    own.add_argument("--wrt", type=int, nargs="+", metavar="N", help="positions of the arguments to check (all)")
    own.add_argument("--rtol", type=float, help="the relative error that is fine (by dtype)")
    own.add_argument("--seeds", type=int, default=3, help="how many random cotangents (3)")
    own.add_argument(
        "--intended", nargs="+", default=(), metavar="NAME", help="functions whose custom rule is meant to differ"
    )
    own.add_argument("--budget", type=float, default=30.0, metavar="S", help="seconds for differences (30)")
    own.add_argument(
        "--actions", action="store_true", help="check every action by itself, and name the first wrong one"
    )

    nonfinite = add("nonfinite", _nonfinite, "where a NaN or an infinity in a function of yours was born")
    nonfinite.add_argument("target", metavar="FUNCTION", help="module:function or file.py:function")
    nonfinite.add_argument("--args", metavar="EXPRESSION", help="its arguments, as Python")
    nonfinite.add_argument("--wrt", type=int, nargs="+", metavar="N", help="positions of the arguments (all)")
    nonfinite.add_argument("--aux", action="store_true", help="it returns (loss, others)")
    nonfinite.add_argument("--json", metavar="FILE", help="write the report to a file ('-' for standard output)")
    nonfinite.add_argument("--html", metavar="FILE", help="write the report as a page of its own")

    show = add("show", _show, "record a function of yours and print its tape")
    show.add_argument("target", metavar="FUNCTION", help="module:function or file.py:function")
    show.add_argument("--args", metavar="EXPRESSION", help="its arguments, as Python")
    show.add_argument("--primitives", action="store_true", help="each lax primitive an action, loops step by step")
    show.add_argument("--html", metavar="FILE", help="write the tape as a page to step through")
    show.add_argument("--dot", metavar="FILE", help="write the tape as a Graphviz graph ('-' for standard output)")

    show.add_argument(
        "--save", metavar="FILE", help="write the run as data, for `tapejax diff`: FILE.json and FILE.npz"
    )

    diff = add("diff", _diff, "the first action where two saved runs part, forward and back")
    diff.add_argument("a", metavar="A", help="what `tapejax show --save` or TapeData.save wrote")
    diff.add_argument("b", metavar="B", help="another")
    diff.add_argument("--rtol", type=float, help="the relative difference that is fine (by dtype)")
    diff.add_argument("--json", metavar="FILE", help="write the result to a file ('-' for standard output)")
    diff.set_defaults(html=None)

    coverage = add("coverage", _coverage, "primitives (rule, constant, refused) and functions of jax (lifted, plain)")
    coverage.add_argument("what", nargs="?", choices=("all", "primitives", "functions"), default="all")

    disagreements = add(
        "disagreements", _disagreements, "where tapejax and the installed jax disagree, and who is right"
    )
    disagreements.add_argument("--only", metavar="NAMES", help="primitives, separated by commas")
    disagreements.add_argument("--no-samples", action="store_true", help="without the samples of the rules")
    disagreements.add_argument(
        "--keep",
        metavar="FILE",
        help="keep what is found on the way; run again with the same file, it goes on from there",
    )
    disagreements.add_argument("--page", metavar="FILE", help="write the section of this jax into a page")
    disagreements.add_argument("--json", metavar="FILE", help="write all results to a file ('-' for standard output)")
    disagreements.set_defaults(html=None)
    return parser


# --- verify ------------------------------------------------------------------------------------------------


def _verify(options: argparse.Namespace) -> int:
    if options.target is None:
        mine = [name for name in ("args", "wrt", "rtol", "actions") if getattr(options, name)]
        if mine:
            raise UsageError(f"--{mine[0]} is for a function of yours: name one, as in train.py:loss")
        report = _verify_rules(options)
    else:
        if options.quick or options.only or options.against != "jax":
            raise UsageError("--quick, --only and --against are for the rules; leave the function out, or them")
        report = _verify_function(options)
    return _write(report, options)


def _verify_rules(options: argparse.Namespace) -> Any:
    _use_four_cpu_devices()
    from tapejax.verify.samples import FAMILIES
    from tapejax.verify.suite import name_of, verify_rules

    only = None
    if options.only:
        only = [name.strip() for name in options.only.split(",")]
        known = set(FAMILIES) | {name_of(p) for samples in FAMILIES.values() for p in samples}
        unknown = [name for name in only if name not in known]
        if unknown:
            close = get_close_matches(unknown[0], known, 3)
            hint = f"; do you mean {' or '.join(close)}?" if close else f"; families: {', '.join(sorted(FAMILIES))}"
            raise UsageError(f"no primitive or family called {', '.join(unknown)}{hint}")
    with _progress() as progress:
        return verify_rules(quick=options.quick, only=only, against=options.against, progress=progress)


def _verify_function(options: argparse.Namespace) -> Any:
    import tapejax

    function, args = _call_of(options)
    try:
        if options.actions:
            return tapejax.verify_tape(function, *args, rtol=options.rtol)
        return tapejax.verify(
            function, *args, order=options.order, wrt=options.wrt, rtol=options.rtol, seeds=options.seeds,
            intended=options.intended, budget=options.budget,
        )  # fmt: skip
    except tapejax.TapejaxError as error:
        raise UsageError(str(error)) from error


def _write(report: Any, options: argparse.Namespace) -> int:
    with _writing():
        if options.json == "-":
            print(json.dumps(report.to_json()))
        else:
            print(report)
            if options.json:
                with open(options.json, "w", encoding="utf-8") as file:
                    json.dump(report.to_json(), file, indent=1)
        if options.html:
            report.save_html(options.html)
    if getattr(report, "verdict", None) == "undecided":
        return 2
    return 0 if report.ok else 1


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {error.filename}: {error.strerror}") from error


def _nonfinite(options: argparse.Namespace) -> int:
    import tapejax

    function, args = _call_of(options)
    try:
        report = tapejax.find_nonfinite(function, *args, wrt=options.wrt, has_aux=options.aux)
    except tapejax.TapejaxError as error:
        raise UsageError(str(error)) from error
    return _write(report, options)


# --- show --------------------------------------------------------------------------------------------------


def _show(options: argparse.Namespace) -> int:
    import tapejax
    from tapejax.verify.subject import Subject
    from tapejax.verify.watch import watch

    function, args = _call_of(options)
    if options.save:
        with _writing():
            detail = "primitives" if options.primitives else "ops"
            print("saved as", tapejax.diagnose.TapeData.record(function, *args, detail=detail).save(options.save))
    try:
        recorded = watch(Subject.of(function, args), detail="primitives" if options.primitives else "ops")
    except tapejax.TapejaxError as error:
        raise UsageError(str(error)) from error
    tape = tapejax.Tape(label=getattr(function, "__name__", "the function"))
    for action in recorded.actions:
        tape.push(action)
    tape.epoch = next((a.epoch for a in recorded.actions if hasattr(a, "epoch")), tape.epoch)
    if options.dot == "-":
        print(tape.to_dot())
        return 0
    print(tape)
    if len(tape) == 1 and not options.primitives:
        print("one action: the function is written for arrays; --primitives opens it")
    with _writing():
        if options.dot:
            with open(options.dot, "w", encoding="utf-8") as file:
                file.write(tape.to_dot())
        if options.html:
            roots = [root for root in recorded.roots if getattr(root, "requires_grad", False)]
            tape.save_html(options.html, root=roots)
    return 0


def _diff(options: argparse.Namespace) -> int:
    import tapejax

    try:
        a, b = (tapejax.diagnose.TapeData.load(path) for path in (options.a, options.b))
    except tapejax.TapejaxError as error:
        raise UsageError(error.what) from error
    return _write(a.diff(b, rtol=options.rtol), options)


# --- a function and its arguments ----------------------------------------------------------------------------


def _call_of(options: argparse.Namespace) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function that was named, with its arguments; it has been called once, so what it raises is its own."""
    module, name = _module_of(options.target)
    function = module
    for part in name.split("."):
        if not hasattr(function, part):
            known = [
                n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__
            ]
            close = get_close_matches(name, known, 3) or known[:6]
            hint = f"; it has {', '.join(close)}" if close else ""
            raise UsageError(f"{options.target}: nothing called {name} there{hint}")
        function = getattr(function, part)
    if not callable(function):
        raise UsageError(f"{options.target} is a {type(function).__name__}, not a function")
    args = _arguments(options, module)
    try:
        inspect.signature(function).bind(*args)
    except TypeError as error:
        raise UsageError(f"{options.target} does not take these {len(args)} arguments: {error}") from error
    except ValueError:
        pass  # it has no signature to ask
    try:
        function(*args)
    except Exception as error:
        from tapejax.errors import TapejaxError

        if not isinstance(error, (AttributeError, TapejaxError)):  # it may be written for Tensors only
            frames = traceback.extract_tb(error.__traceback__)
            at = next((f for f in reversed(frames) if f.filename == getattr(module, "__file__", None)), frames[-1])
            raise UsageError(
                f"{options.target} itself fails on these arguments, before any gradient\n"
                f"  {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}\n"
                f"  at {at.filename}:{at.lineno}\n"
                f"  arguments: {', '.join(map(_kind, args))}"
            ) from error
    return function, args


def _module_of(target: str) -> tuple[Any, str]:
    place, colon, name = target.rpartition(":")
    if not colon or not name or not place:
        raise UsageError(f"{target!r} names no function: write module:function or file.py:function")
    sys.path.insert(0, os.getcwd())
    try:
        if place.endswith(".py"):
            if not os.path.exists(place):
                raise UsageError(f"there is no file {place}")
            found = importlib.util.spec_from_file_location(os.path.basename(place)[:-3], place)
            assert found is not None
            assert found.loader is not None
            module = importlib.util.module_from_spec(found)
            sys.modules[found.name] = module
            sys.path.insert(0, os.path.dirname(os.path.abspath(place)))
            found.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
    except UsageError:
        raise
    except ModuleNotFoundError as error:
        if error.name and place.startswith(error.name):
            hint = f" (there is a file: {place}.py:{name}?)" if os.path.exists(f"{place}.py") else ""
            raise UsageError(f"no module called {error.name}, searched from {os.getcwd()}{hint}") from error
        raise UsageError(f"importing {place} failed: {error}") from error
    except Exception as error:
        raise UsageError(f"importing {place} failed: {type(error).__name__}: {error}") from error
    return module, name


def _arguments(options: argparse.Namespace, module: Any) -> tuple[Any, ...]:
    import jax
    import jax.numpy as jnp
    import numpy as np

    if options.args is not None:
        try:
            found = eval(f"({options.args}\n,)", {"jax": jax, "jnp": jnp, "np": np, **vars(module)})
        except Exception as error:
            raise UsageError(f"--args {options.args!r}: {type(error).__name__}: {error}") from error
        args = tuple(_array(arg) for arg in found)
    elif callable(getattr(module, "inputs", None)):
        found = module.inputs()
        args = found if isinstance(found, tuple) else (found,)
    else:
        raise UsageError(
            f"what are the arguments of {options.target}? Give --args '[0.5, 1.0], 2.0', "
            "or a function inputs() beside it that returns a tuple"
        )
    for position, arg in enumerate(args):
        for leaf in jax.tree_util.tree_leaves(arg):
            if isinstance(leaf, (str, bytes)):
                raise UsageError(f"argument {position} is a {type(leaf).__name__}, which has no gradient: {leaf!r}")
    return args


def _array(arg: Any) -> Any:
    """A list of numbers as an array; anything else as it is."""
    import jax.numpy as jnp

    if not isinstance(arg, list):
        return arg
    try:
        return jnp.asarray(arg)
    except (TypeError, ValueError):
        return arg  # a list of other things is a pytree


def _kind(arg: Any) -> str:
    import jax

    try:
        return jax.typeof(arg).str_short()
    except TypeError:
        return type(arg).__name__


# --- coverage, and what the commands share ---------------------------------------------------------------------


def _use_four_cpu_devices() -> None:
    """Collectives need somebody to talk to. Not if the user chose a number, or jax runs already."""
    import jax

    chosen = jax.config.jax_num_cpu_devices > 0 or "xla_force_host_platform_device_count" in os.environ.get(
        "XLA_FLAGS", ""
    )
    with contextlib.suppress(RuntimeError):  # jax runs already
        if not chosen:
            jax.config.update("jax_num_cpu_devices", 4)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    from tapejax.verify.progress import Bar

    bar = Bar()
    try:
        yield bar
    finally:
        bar.clear()


def _coverage(options: argparse.Namespace) -> int:
    status = 0
    if options.what != "functions":
        from tapejax.calculus.coverage import main

        status = main() or 0
    if options.what != "primitives":
        from tapejax.ops.surface import names

        print(names.report())
        status = status or any(name.kind == names.MISSING for name in names.survey())
    return int(status)


def _disagreements(options: argparse.Namespace) -> int:
    _use_four_cpu_devices()
    from tapejax.verify.disagreements import survey
    from tapejax.verify.disagreements.calls import calls
    from tapejax.verify.disagreements.page import write

    only = None
    if options.only:
        only = [name.strip() for name in options.only.split(",")]
        known = {call.primitive for call in calls()}
        unknown = [name for name in only if name not in known]
        if unknown:
            close = get_close_matches(unknown[0], known, 3)
            hint = f"; do you mean {' or '.join(close)}?" if close else ""
            raise UsageError(f"no call of a primitive called {', '.join(unknown)}{hint}")
        if options.page:
            raise UsageError("--page writes a whole section: leave --only out")
    with _progress() as progress:
        found = survey(only=only, samples=not options.no_samples, progress=progress, keep=options.keep)
    with _writing():
        if options.page:
            write(found, options.page)
    return _write(found, options)


if __name__ == "__main__":
    sys.exit(main())
