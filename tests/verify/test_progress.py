"""Long commands say how far they are, on a terminal only."""

import importlib.util
import io
import sys

import pytest

from tapejax.verify.progress import Bar


class Screen(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


def shown(monkeypatch, terminal):
    screen = Screen(terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    bar = Bar()
    bar(3, 12, "elementwise: sin")
    bar.clear()
    return screen.getvalue()


@pytest.mark.parametrize("rich", [True, False])
def test_a_terminal_sees_how_far_it_is_and_a_file_nothing(rich, monkeypatch):
    if rich:
        pytest.importorskip("rich")
        monkeypatch.setenv("TERM", "xterm-256color")
    else:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    said = shown(monkeypatch, terminal=True)
    assert "3/12" in said
    assert "elementwise: sin" in said
    assert shown(monkeypatch, terminal=False) == ""
