"""What a class has done: `python notebooks/progress.py FOLDER` reads the notebooks that students saved, and runs nothing.

One line for each notebook: how many checks say right, which say wrong, which are left. It reads what the notebook printed when it was
last run, so a student runs all cells and saves before handing in. To be sure, run a notebook yourself first (docs/teaching.md).
"""

import argparse
import json
import re
import sys
from pathlib import Path

VERDICT = re.compile(r"^(exercise|question) (\d+): (right|wrong|not yet)", re.MULTILINE)


def verdicts(notebook: dict) -> dict[str, str]:
    """The verdict of each check, by its name; "not run" for a cell that was not."""
    found = {}
    for cell in notebook["cells"]:
        tags = cell["metadata"].get("tags", [])
        said = "".join("".join(output.get("text", "")) for output in cell.get("outputs", []))
        found.update((f"{what} {number}", verdict) for what, number, verdict in VERDICT.findall(said))
        if not said and "check" in tags:
            exercise = re.search(r'check\("\d+\.(\d+)"', "".join(cell["source"]))
            found.update({f"exercise {exercise[1]}": "not run"} if exercise else {})
        if not said and "quiz" in tags:
            found["quiz"] = "not run"
    return found


def line(name: str, found: dict[str, str]) -> str:
    of = lambda *wanted: ", ".join(check for check, verdict in found.items() if verdict in wanted)
    right = sum(verdict == "right" for verdict in found.values())
    parts = [f"{name}: {right} of {len(found)} right"]
    parts += [f"{verdict}: {of(verdict)}" for verdict in ("wrong", "not yet", "not run") if of(verdict)]
    return "; ".join(parts)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a folder with notebooks, or with one folder for each student")
    folder = parser.parse_args(arguments).folder
    paths = [path for path in sorted(folder.rglob("*.ipynb")) if ".ipynb_checkpoints" not in path.parts]
    for path in paths:
        try:
            found = verdicts(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, KeyError):
            print(f"{path.relative_to(folder)}: not a notebook that can be read")
            continue
        print(line(str(path.relative_to(folder)), found))
    if not paths:
        print(f"no notebooks in {folder}")
    return 0 if paths else 1


if __name__ == "__main__":
    sys.exit(main())
