"""Keep the notebooks free of outputs: `python notebooks/strip.py` strips them, `--check` only looks.

A notebook in git is what somebody wrote, not what a machine printed: no outputs, no execution counts, and
metadata that says no more than which cells are folded.
"""

import argparse
import json
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
KERNEL = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
KEPT = ("tags", "jupyter", "mystnb")


def stripped(notebook: dict) -> dict:
    """The notebook as it should be in git."""
    cells = []
    for number, cell in enumerate(notebook["cells"], start=1):
        metadata = {key: cell["metadata"][key] for key in KEPT if cell["metadata"].get(key)}
        text = "".join(cell["source"])
        kept = {"cell_type": cell["cell_type"], "id": f"cell-{number:02}", "metadata": metadata}
        if cell["cell_type"] == "code":
            kept |= {"execution_count": None, "outputs": []}
        cells.append(kept | {"source": text.splitlines(keepends=True)})
    return {"cells": cells, "metadata": KERNEL, "nbformat": 4, "nbformat_minor": 5}


def text_of(notebook: dict) -> str:
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit with 1 if something is left to strip"
    )
    options = parser.parse_args(arguments)
    left = []
    for path in sorted(FOLDER.glob("*.ipynb")):
        before = path.read_text(encoding="utf-8")
        after = text_of(stripped(json.loads(before)))
        if before != after:
            left.append(path.name)
            if not options.check:
                path.write_text(after, encoding="utf-8")
    if left:
        print(("has outputs or odd metadata: " if options.check else "stripped: ") + ", ".join(left))
    return int(bool(left) and options.check)


if __name__ == "__main__":
    sys.exit(main())
