"""After the build: no page may ask the network for a script, a style, a font or a picture.

`python docs/extensions/offline.py docs/_build/html` says which do.
"""

import re
import sys
from pathlib import Path

ASKS = [
    re.compile(r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=[\"']((?:https?:)?//[^\"']+)", re.IGNORECASE),
    re.compile(r"<link\b(?=[^>]*\brel=[\"'](?:stylesheet|preload|icon|modulepreload|preconnect))[^>]*\bhref=[\"']((?:https?:)?//[^\"']+)", re.IGNORECASE),
    re.compile(r"url\(\s*[\"']?((?:https?:)?//[^)\"']+)", re.IGNORECASE),
    re.compile(r"@import\s+[\"']((?:https?:)?//[^\"']+)", re.IGNORECASE),
]  # fmt: skip


def asked(text: str) -> list[str]:
    """What a page or a style sheet loads from elsewhere; links that one may click are fine."""
    return [address for pattern in ASKS for address in pattern.findall(text)]


def main(folder: str) -> int:
    pages = [path for path in Path(folder).rglob("*") if path.suffix in (".html", ".css")]
    found = {path: addresses for path in pages if (addresses := asked(path.read_text(encoding="utf-8")))}
    for path, addresses in found.items():
        print(f"{path} asks for {', '.join(sorted(set(addresses)))}")
    if not any(path.suffix == ".html" for path in pages):
        print(f"no pages in {folder}")
        return 1
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
