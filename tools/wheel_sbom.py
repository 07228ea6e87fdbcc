"""Completes a software bill of materials and adds it to its wheel (PEP 770): `python -m tools.wheel_sbom SBOM WHEEL`.

The tool that lists the packages of an environment does not know which of them the bill is about. This program moves
that package to `metadata.component`, without the local path from which it was installed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

NAME = "spark-kafka-sink"
FILE = f"{NAME}.cdx.json"
_TIME = (1980, 1, 1, 0, 0, 0)
"""Fixed modification time, so that the same files always result in the same wheel."""


def finished(bill: dict[str, Any]) -> dict[str, Any]:
    """Return the bill with the package as its subject instead of as one of its components."""
    (main,) = [component for component in bill["components"] if component["name"] == NAME]
    others = [component for component in bill["components"] if component["name"] != NAME]
    known = [reference for reference in main.pop("externalReferences", []) if not reference["url"].startswith("file:")]
    main |= {"purl": f"pkg:pypi/{NAME}@{main['version']}"} | ({"externalReferences": known} if known else {})
    return {**bill, "metadata": {**bill["metadata"], "component": main}, "components": others}


def add_to_wheel(wheel: Path, text: str) -> None:
    """Rewrite the wheel with the bill in `.dist-info/sboms/` and in RECORD. An earlier bill is replaced."""
    aside = wheel.with_suffix(".aside")
    with zipfile.ZipFile(wheel) as before, zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as after:
        (record,) = [name for name in before.namelist() if name.endswith(".dist-info/RECORD")]
        place = f"{record.removesuffix('RECORD')}sboms/{FILE}"
        for item in before.infolist():
            if item.filename not in (record, place):
                after.writestr(item, before.read(item))
        _add(after, place, text)
        lines = [line for line in before.read(record).decode().splitlines() if not line.startswith(place)]
        lines.insert(-1, f"{place},sha256={_digest(text)},{len(text.encode())}")
        _add(after, record, "\n".join(lines) + "\n")
    shutil.move(aside, wheel)


def _add(archive: zipfile.ZipFile, place: str, text: str) -> None:
    item = zipfile.ZipInfo(place, _TIME)
    item.external_attr = 0o644 << 16
    archive.writestr(item, text, zipfile.ZIP_DEFLATED)


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


if __name__ == "__main__":
    bill_path, wheel_path = map(Path, sys.argv[1:])
    finished_text = json.dumps(finished(json.loads(bill_path.read_text())), indent=2) + "\n"
    bill_path.write_text(finished_text)
    add_to_wheel(wheel_path, finished_text)
