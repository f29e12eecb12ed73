"""The checker of the course: says right, wrong with your number, or not yet. It never shows the answer and never raises.

>>> count = ...                                  # a blank
>>> check("02.1", count=count, slopes=...)
exercise 1: not yet (count, slopes)
>>> check("02.2", inner_slope=13.0)
exercise 2: wrong. You have inner_slope = 13
"""

from __future__ import annotations

import dis
import types
from typing import Any

from tapejax.course.answers import ANSWERS, Wrong
from tapejax.course.quiz import QUIZZES

__all__ = ["check", "quiz"]


def check(exercise: str, /, **answers: Any) -> None:
    """Print whether the answers of an exercise are right. exercise: the notebook's number and its own, such as "02.1"."""
    label = f"exercise {exercise.partition('.')[2]}"
    left = [name for name, value in answers.items() if blank(value)]
    if left:
        print(f"{label}: not yet ({', '.join(left)})")
        return
    try:
        ANSWERS[exercise](**answers)
    except Wrong as wrong:
        print(f"{label}: wrong. {wrong}")
    except Exception as error:  # the student's function is run: whatever it raises is a finding, not an end
        print(f"{label}: wrong. It raised {type(error).__name__}: {str(error).partition(chr(10))[0]}")
    else:
        print(f"{label}: right")


def quiz(notebook: str, /, *choices: Any) -> None:
    """Print which answers of a notebook's quiz are right. choices: a letter for each question."""
    expected = QUIZZES[notebook]
    for number, right in enumerate(expected, start=1):
        choice = choices[number - 1] if number <= len(choices) else ...
        if blank(choice):
            print(f"question {number}: not yet")
        elif str(choice).strip().lower() == right:
            print(f"question {number}: right")
        else:
            print(f"question {number}: wrong. You have {choice!r}")


def blank(value: Any) -> bool:
    """Whether nothing was written yet: `...` itself, or a function whose body is `...`.

    >>> def f(x): ...
    >>> blank(...), blank(f), blank(lambda x: x), blank(None)
    (True, True, False, False)
    >>> blank(lambda x: 3)
    False
    """
    if value is ...:
        return True
    if not isinstance(value, types.FunctionType):
        return False
    # A body of `...` compiles to: return None. What releases of Python add around it does nothing.
    nothing = {"RESUME", "NOP", "RETURN_VALUE", "CACHE", "COPY_FREE_VARS", "MAKE_CELL"}
    return_none = {"LOAD_CONST", "RETURN_CONST"}
    found = list(dis.get_instructions(value))
    return all(i.opname in nothing or (i.opname in return_none and i.argval is None) for i in found)
