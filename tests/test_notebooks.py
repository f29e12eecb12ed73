"""The notebooks are stripped, have exercises with checked answers, and run in a kernel of their own."""

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
QUICK = "01"  # the others run with the slow tests

spec = importlib.util.spec_from_file_location("strip", FOLDER / "strip.py")
strip = importlib.util.module_from_spec(spec)
spec.loader.exec_module(strip)


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def tagged(cell, tag):
    return tag in cell["metadata"].get("tags", [])


def test_there_are_ten_in_order():
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{number:02}" for number in range(1, 11)]


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
def test_they_end_with_exercises_whose_answers_are_checked(path):
    cells = read(path)["cells"]
    title = "".join(cells[0]["source"])
    assert title.startswith("# ")
    texts = ["".join(cell["source"]) for cell in cells]
    exercises = [place for place, text in enumerate(texts) if re.search(r"^\*\*\d\.\*\*", text, re.MULTILINE)]
    answers = [place for place, cell in enumerate(cells) if tagged(cell, "answer")]
    assert len(exercises) == len(answers) >= 3
    for exercise, answer in zip(exercises, answers, strict=True):
        assert exercise < answer, "the answer comes after its exercise"
        assert cells[answer]["metadata"]["jupyter"]["source_hidden"], "the answer is folded"
        assert tagged(cells[answer + 1], "check")
        assert re.search(r"\bassert", texts[answer + 1]), "the check can fail"
    assert answers[-1] == len(cells) - 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_tutorial_and_its_readme_name_them(path):
    assert f"(../notebooks/{path.name})" in (ROOT / "docs/tutorial.md").read_text()
    assert f"({path.name})" in (FOLDER / "README.md").read_text()


def outputs_of(path):
    """The notebook, run from top to bottom in a new kernel of this Python."""
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
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(FOLDER)}})
    client.kernel_manager_class = ThisPython
    began = time.perf_counter()
    client.execute()
    print(f"\n{path.stem}: {time.perf_counter() - began:.1f} s")
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


@pytest.mark.filterwarnings("default")  # of the kernel's own machinery
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[] if path.name.startswith(QUICK) else pytest.mark.slow, id=path.stem)
        for path in NOTEBOOKS
    ],
)
def test_they_run_and_their_answers_are_right(path):
    outputs = outputs_of(path)
    said = "".join(
        output["text"] for output in outputs if output["output_type"] == "stream" and output["name"] == "stdout"
    )
    for number in (1, 2, 3):
        assert f"exercise {number}: right" in said
    assert any("image/png" in output.get("data", {}) for output in outputs) or path.name.startswith("03")
    assert not [output for output in outputs if output["output_type"] == "stream" and output["name"] == "stderr"]


@pytest.mark.filterwarnings("default")
def test_a_wrong_answer_fails(tmp_path):
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cell = {"cell_type": "code", "metadata": {}, "source": "assert 1 + 1 == 3"}
    path = tmp_path / "wrong.ipynb"
    path.write_text(strip.text_of(strip.stripped({"cells": [cell]})))
    with pytest.raises(nbclient.exceptions.CellExecutionError):
        outputs_of(path)
