"""The command line: what it prints, its exit status, and what it says to bad input."""

import json

import pytest

from tapejax.cli import main

MODULE = """
import jax, jax.numpy as jnp

def loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)

softplus = jax.custom_vjp(lambda x: jnp.log1p(jnp.exp(x)))
softplus.defvjp(lambda x: (jnp.log1p(jnp.exp(x)), x), lambda x, ct: (ct * jnp.exp(x),))

def wrong(w, x):
    return jnp.sum(softplus(x @ w))

def broken(w, x):
    raise RuntimeError("no data")

constant = 3

def inputs():
    return jnp.array([0.3, -0.7]), jnp.array([[1.0, 2.0], [0.5, -1.0]])
"""


@pytest.fixture
def train(tmp_path, monkeypatch):
    (tmp_path / "train_of_cli.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_right_function(train, capsys):
    assert main(["verify", "train_of_cli.py:loss", "--seeds", "1", "--json", "-"]) == 0
    known = json.loads(capsys.readouterr().out)
    assert known["ok"]
    assert {row["input"] for row in known["rows"]} == {"w", "x"}


def test_a_wrong_function_with_a_page_and_its_actions(train, capsys):
    assert main(["verify", "train_of_cli:wrong", "--seeds", "1", "--html", "report.html", "--json", "report.json"]) == 1
    said = capsys.readouterr().out
    assert "culprit" in said
    assert "train_of_cli.py" in said
    assert "<!doctype html>" in (train / "report.html").read_text()
    assert json.loads((train / "report.json").read_text())["ok"] is False
    assert main(["verify", "train_of_cli:wrong", "--actions"]) == 1
    assert "custom_vjp_call" in capsys.readouterr().out


def test_arguments_from_the_command_line(train, capsys):
    call = ["verify", "train_of_cli:loss", "--args", "[0.5, 1.0], jnp.ones((1, 2))", "--wrt", "0", "--seeds", "1"]
    assert main(call) == 0
    assert "float32[2]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["verify", "train_of_cli.py"], "names no function"),
        (["verify", "nothing.py:loss"], "no file nothing.py"),
        (["verify", "no_such_module:loss"], "no module called no_such_module"),
        (["verify", "train_of_cli:los"], "it has loss"),
        (["verify", "train_of_cli:constant"], "not a function"),
        (["verify", "train_of_cli:loss", "--args", "1.0"], "does not take these 1 arguments"),
        (["verify", "train_of_cli:loss", "--args", "oops"], "NameError"),
        (["verify", "train_of_cli:loss", "--args", "'a', 1.0"], "argument 0 is a str"),
        (["verify", "train_of_cli:loss", "--args", "[1.0], [1.0, 2.0]"], "itself fails on these arguments"),
        (["verify", "train_of_cli:broken"], "no data"),
        (["verify", "train_of_cli:loss", "--wrt", "5"], "wrt"),
        (["verify", "train_of_cli:loss", "--quick"], "for the rules"),
        (["verify", "--args", "1.0"], "function of yours"),
        (["verify", "--only", "sine"], "do you mean sin"),
        (["show", "no_such_module:loss"], "no module"),
    ],
)
def test_bad_input_is_answered_in_words(train, capsys, arguments, said):
    assert main(arguments) == 2
    streams = capsys.readouterr()
    assert said in streams.err
    assert "Traceback" not in streams.err


def test_inputs_are_asked_for(train, capsys):
    (train / "bare_of_cli.py").write_text("def f(x):\n    return x\n")
    assert main(["verify", "bare_of_cli:f"]) == 2
    assert "--args" in capsys.readouterr().err


def test_an_unwritable_file(train, capsys):
    assert main(["verify", "--only", "neg", "--quick", "--html", "no/such/folder.html"]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_some_rules(train, capsys):
    assert main(["verify", "--only", "neg,fft", "--quick", "--html", "rules.html", "--json", "rules.json"]) == 0
    said = capsys.readouterr().out
    assert "elementwise" in said
    assert "every rule agrees" in said
    assert json.loads((train / "rules.json").read_text())["quick"] is True
    assert "every rule agrees" in (train / "rules.html").read_text().lower()


def test_show(train, capsys):
    assert main(["show", "train_of_cli:loss"]) == 0
    assert "--primitives opens it" in capsys.readouterr().out
    assert main(["show", "train_of_cli:loss", "--primitives", "--dot", "tape.dot", "--html", "tape.html"]) == 0
    assert "dot_general" in capsys.readouterr().out
    assert "digraph" in (train / "tape.dot").read_text()
    assert "dot_general" in (train / "tape.html").read_text()


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit):
        main(["verify", "--help"])
    assert "train.py:loss" in capsys.readouterr().out
