"""The whole engine as one file: `python3 rehearsal.pyz serve MODEL ...` on any host with Python 3.9 or newer."""

from __future__ import annotations

import io
import os
import zipfile

_MAIN = "import sys\nfrom rehearsal.program import main\nsys.exit(main(sys.argv[1:]))\n"
# The zip format's earliest date, so that equal sources give equal bytes.
_DATE = (1980, 1, 1, 0, 0, 0)


def build() -> bytes:
    """Return the zip application: this package with its word and flag tables, and a main that starts it."""
    folder = os.path.dirname(os.path.abspath(__file__))
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "__main__.py", _MAIN.encode())
        for name in sorted(os.listdir(folder)):
            if name.endswith((".py", ".jsonl")):
                with open(os.path.join(folder, name), "rb") as file:
                    _add(archive, f"rehearsal/{name}", file.read())
    return memory.getvalue()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content)
