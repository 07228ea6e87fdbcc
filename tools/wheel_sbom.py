"""A wheel's software bill of materials, completed and added to it (PEP 770): `python -m tools.wheel_sbom SBOM WHEEL`.

The tool that lists the packages of an environment does not know which of them the bill describes. This program moves
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
_MODIFICATION_TIME = (1980, 1, 1, 0, 0, 0)
"""Fixed modification time, so that the same files always result in the same wheel."""


def complete_bill(bill: dict[str, Any]) -> dict[str, Any]:
    """Return the bill with the package as its subject instead of as one of its components."""
    (package,) = [component for component in bill["components"] if component["name"] == NAME]
    dependencies = [component for component in bill["components"] if component["name"] != NAME]
    package["purl"] = f"pkg:pypi/{NAME}@{package['version']}"
    references = package.pop("externalReferences", [])
    public_references = [reference for reference in references if not reference["url"].startswith("file:")]
    if public_references:
        package["externalReferences"] = public_references
    return {**bill, "metadata": {**bill["metadata"], "component": package}, "components": dependencies}


def add_to_wheel(wheel: Path, text: str) -> None:
    """Rewrite the wheel with the bill in `.dist-info/sboms/` and in RECORD. An earlier bill is replaced."""
    new_wheel = wheel.with_suffix(".new")
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(new_wheel, "w", zipfile.ZIP_DEFLATED) as target:
        (record_name,) = [name for name in source.namelist() if name.endswith(".dist-info/RECORD")]
        bill_name = f"{record_name.removesuffix('RECORD')}sboms/{FILE}"
        for item in source.infolist():
            if item.filename not in (record_name, bill_name):
                target.writestr(item, source.read(item))
        _write_entry(target, bill_name, text)
        lines = [line for line in source.read(record_name).decode().splitlines() if not line.startswith(bill_name)]
        lines.insert(-1, f"{bill_name},sha256={_encode_digest(text)},{len(text.encode())}")  # RECORD's own line is last
        _write_entry(target, record_name, "\n".join(lines) + "\n")
    shutil.move(new_wheel, wheel)


def _write_entry(archive: zipfile.ZipFile, name: str, text: str) -> None:
    item = zipfile.ZipInfo(name, _MODIFICATION_TIME)
    item.external_attr = 0o644 << 16
    archive.writestr(item, text, zipfile.ZIP_DEFLATED)


def _encode_digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


if __name__ == "__main__":
    bill_path, wheel_path = map(Path, sys.argv[1:])
    bill_text = json.dumps(complete_bill(json.loads(bill_path.read_text())), indent=2) + "\n"
    bill_path.write_text(bill_text)
    add_to_wheel(wheel_path, bill_text)
