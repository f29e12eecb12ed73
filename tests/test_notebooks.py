"""The course: notebooks are stripped and hold no answers; left blank every check says "not yet", with the solutions it says "right"."""

import importlib.util
import json
import re
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NO_JAX = ("01", "04")  # for who knows no JAX


def tool(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


strip, fill, progress = tool("strip"), tool("fill"), tool("progress")


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def tagged(cell, tag):
    return tag in cell["metadata"].get("tags", [])


def test_they_are_in_order():
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{number:02}" for number in range(1, 16)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_are_stripped(path):
    text = path.read_text(encoding="utf-8")
    assert text == strip.text_of(strip.stripped(json.loads(text))), "run: python notebooks/strip.py"


def test_outputs_are_seen_and_stripped(tmp_path, monkeypatch, capsys):
    notebook = read(NOTEBOOKS[0])
    cell = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    cell["outputs"], cell["execution_count"] = [{"output_type": "stream", "name": "stdout", "text": ["1\n"]}], 7
    path = tmp_path / "01.ipynb"
    path.write_text(json.dumps(notebook))
    monkeypatch.setattr(strip, "FOLDER", tmp_path)
    assert strip.main(["--check"]) == 1
    assert "01.ipynb" in capsys.readouterr().out
    assert strip.main([]) == 0
    assert strip.main(["--check"]) == 0
    assert path.read_text(encoding="utf-8") == NOTEBOOKS[0].read_text(encoding="utf-8")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_have_the_parts_of_a_lesson(path):
    cells = read(path)["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    prose = "\n".join(text for text, cell in zip(texts, cells) if cell["cell_type"] == "markdown")
    assert texts[0].startswith("# ")
    for part in ("**You need:**", "**You will be able to**", "**Time:**", "## Recap", "## Quiz"):
        assert part in prose, part
    following = NOTEBOOKS[NOTEBOOKS.index(path) + 1 :][:1]
    assert all(f"({other.name})" in texts[-1] for other in following), "the last cell leads to the next notebook"
    for link in re.findall(r"\]\((?!http)([^)#]+)", prose):
        assert (FOLDER / link).exists(), link


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_exercises_have_a_blank_and_a_check_and_no_answer(path):
    cells = read(path)["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    blanks = fill.blanks(read(path))
    solutions = fill.solutions(path)
    checks = [place for place, cell in enumerate(cells) if tagged(cell, "check") or tagged(cell, "quiz")]
    assert len(blanks) == len(checks) == len(solutions) >= 4
    for blank, check, solution in zip(blanks, checks, solutions, strict=True):
        assert check == blank + 1, "the check follows the blank"
        assert "..." in texts[blank]
        assert "assert" not in texts[check]
        assert re.search(r"^(check|quiz)\(", texts[check], re.MULTILINE)
        assert solution.strip() not in "\n".join(texts), "the solution is in its own folder only"


@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path.name[:2] in NO_JAX], ids=lambda path: path.stem)
def test_two_need_no_jax(path):
    code = "\n".join("".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "code")
    assert not re.search(r"^\s*(import|from) jax|\bjnp\.", code, re.MULTILINE)


def test_the_checker_knows_every_exercise_and_no_other():
    from tapejax.course.answers import ANSWERS
    from tapejax.course.quiz import QUIZZES

    asked, quizzes = set(), set()
    for path in NOTEBOOKS:
        for cell in read(path)["cells"]:
            asked.update(re.findall(r'^check\("([\d.]+)"', "".join(cell["source"]), re.MULTILINE))
            quizzes.update(re.findall(r'^quiz\("(\d+)"', "".join(cell["source"]), re.MULTILINE))
    assert asked == set(ANSWERS)
    assert quizzes == set(QUIZZES)


@pytest.mark.parametrize("value", [-987.25, "nonsense", None, [1, 2, 3, 4, 5, 6, 7], lambda *_, **__: -987.25])
def test_a_wrong_answer_is_wrong_with_your_number_and_nothing_more(value, capsys):
    """Whatever is given, no check raises, passes it, or shows another number than the student's."""
    import inspect

    from tapejax.course import check, quiz
    from tapejax.course.answers import ANSWERS
    from tapejax.course.quiz import QUIZZES

    for number, function in ANSWERS.items():
        check(number, **dict.fromkeys(inspect.signature(function).parameters, value))
        said = capsys.readouterr().out
        assert re.match(rf"exercise {number[3:]}: wrong\.", said), said
        check(number, **dict.fromkeys(inspect.signature(function).parameters, ...))
        assert capsys.readouterr().out.startswith(f"exercise {number[3:]}: not yet (")
    for notebook in QUIZZES:
        quiz(notebook, "z", "z", "z")
        assert capsys.readouterr().out.count("wrong. You have 'z'") == 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_tutorial_and_its_readme_name_them(path):
    assert f"(../notebooks/{path.name})" in (ROOT / "docs/tutorial.md").read_text()
    assert f"({path.name})" in (FOLDER / "README.md").read_text()


def test_a_teacher_sees_what_a_class_has_done(tmp_path, capsys):
    notebook = read(NOTEBOOKS[0])
    said = iter(["exercise 1: right\n", "exercise 2: wrong. You have 3\n", "exercise 3: not yet (best)\n"])
    for cell in notebook["cells"]:
        if tagged(cell, "check") and (text := next(said, "")):
            cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": [text]}]
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / NOTEBOOKS[0].name).write_text(json.dumps(notebook))
    (tmp_path / "bob.ipynb").write_text("{")
    assert progress.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"ada/{NOTEBOOKS[0].name}: 1 of 5 right; wrong: exercise 2; not yet: exercise 3; not run: exercise 4, quiz",
        "bob.ipynb: not a notebook that can be read",
    ]
    assert progress.main([str(tmp_path / "nobody")]) == 1


def outputs_of(path, *, with_solutions=True):
    """What a notebook says, run from top to bottom in a new kernel of this Python: left blank, then with the solutions."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    class ThisPython(AsyncKernelManager):
        """Whatever kernels are installed on this machine: ours runs where the tests run."""

        @property
        def kernel_spec(self):
            return KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])

    notebook = nbformat.read(path, as_version=4)
    count = len(notebook.cells)
    if with_solutions:  # once more through the exercises, after all of it ran with blanks
        texts = fill.solutions(path)
        for place, text in zip(fill.blanks(notebook), texts, strict=True):
            notebook.cells += [nbformat.v4.new_code_cell(text), notebook.cells[place + 1].copy()]
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(FOLDER)}})
    client.kernel_manager_class = ThisPython
    began = time.perf_counter()
    client.execute()
    print(f"\n{path.stem}: {time.perf_counter() - began:.1f} s")
    outputs = lambda cells: [output for cell in cells for output in cell.get("outputs", [])]
    return outputs(notebook.cells[:count]), outputs(notebook.cells[count:])


def said_in(outputs):
    streams = [output for output in outputs if output["output_type"] == "stream"]
    slow = lambda text: text.startswith("compiling ")  # a busy machine is told once that a compilation took long
    assert not [o["text"] for o in streams if o["name"] == "stderr" and not slow(o["text"])]
    return "".join(output["text"] for output in streams)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the kernel's own machinery
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_left_blank_nothing_passes_and_with_the_solutions_all_is_right(path):
    blank, solved = outputs_of(path)
    exercises = len(fill.blanks(read(path))) - 1
    verdicts = re.findall(r"^(?:exercise|question) \d+: (\w+)", said_in(blank), re.MULTILINE)
    assert verdicts == ["not"] * (exercises + 3)
    assert said_in(blank).count("not yet") == exercises + 3
    verdicts = re.findall(r"^(?:exercise|question) \d+: (\w+)", said_in(solved), re.MULTILINE)
    assert verdicts == ["right"] * (exercises + 3), said_in(solved)
    assert any("image/png" in output.get("data", {}) for output in blank) or path.name.startswith(("05", "15"))


@pytest.mark.filterwarnings("default")
def test_a_cell_that_raises_is_noticed(tmp_path):
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cell = {"cell_type": "code", "metadata": {}, "source": "assert 1 + 1 == 3"}
    path = tmp_path / "wrong.ipynb"
    path.write_text(strip.text_of(strip.stripped({"cells": [cell]})))
    with pytest.raises(nbclient.exceptions.CellExecutionError):
        outputs_of(path, with_solutions=False)
