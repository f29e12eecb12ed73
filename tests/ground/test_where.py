"""The user's line, as it is shown."""

import sys
from types import SimpleNamespace

import jax

import tapejax as tj
from tapejax.ground.where import shown


def recorded_line():
    with tj.Tape() as tape:
        tj.tensor(1.0, requires_grad=True) * 2
    return tape[0].line


def test_a_file_is_shown_by_its_name():
    name, line = recorded_line().rsplit(":", 1)
    assert name == __file__
    assert int(line) == recorded_line.__code__.co_firstlineno + 2


def test_a_cell_of_a_notebook_is_shown_by_its_number(monkeypatch):
    names = SimpleNamespace(format_code_name=lambda name: ("Cell", "In[3]") if name == __file__ else None)
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(compile=names))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    assert recorded_line().startswith("In[3]:")
    assert shown("other.py") == "other.py"


def test_ipython_that_runs_no_shell_changes_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert recorded_line().startswith(__file__)


def test_a_line_that_jax_kept_is_shown_so_too(monkeypatch):
    names = SimpleNamespace(format_code_name=lambda name: ("Cell", "In[3]") if name == __file__ else None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(compile=names)))
    with tj.Tape(detail="primitives") as tape:
        tj.lift(lambda x: jax.numpy.sin(x))(tj.tensor(1.0, requires_grad=True))
    assert tape[0].line.startswith("In[3]:")
