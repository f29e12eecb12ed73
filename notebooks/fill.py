"""Fill the solutions into the notebooks' blank cells: `python notebooks/fill.py FOLDER` writes filled copies there.

For teachers, and for the test that the solutions are right. The notebooks themselves stay blank.
"""

import argparse
import json
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def solutions(path: Path) -> list[str]:
    """The parts of a notebook's solutions, one for each blank cell, in order. The last is the quiz."""
    text = (FOLDER / "solutions" / f"{path.name[:2]}.py").read_text(encoding="utf-8")
    *parts, letters = re.split(r"^# %% .*\n", text, flags=re.MULTILINE)[1:]
    choices = ", ".join(f'"{letter}"' for letter in re.findall(r"\b[abc]\b", letters))
    return [*(part.strip() + "\n" for part in parts), f"answers = [{choices}]\n"]


def blanks(notebook: dict) -> list[int]:
    """Which cells are to be written in."""
    return [place for place, cell in enumerate(notebook["cells"]) if "blank" in cell["metadata"].get("tags", [])]


def filled(path: Path) -> dict:
    """The notebook with its solutions in place of the blanks."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for place, text in zip(blanks(notebook), solutions(path), strict=True):
        notebook["cells"][place]["source"] = text.splitlines(keepends=True)
    return notebook


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the filled notebooks go")
    folder = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(FOLDER.glob("[0-9]*.ipynb")):
        (folder / path.name).write_text(json.dumps(filled(path), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
