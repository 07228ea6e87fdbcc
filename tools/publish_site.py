"""Builder of the documentation site for a public address, and of the folder of its published versions.

`python -m tools.publish_site FOLDER REPOSITORY` builds docs/site/ with links to edit each page in the repository
(`https://github.com/OWNER/NAME`) and with a version selector, and copies it to FOLDER/<version>/. FOLDER/versions.json
lists the versions for the selector, in the format of mike, and FOLDER/index.html leads to the newest one.

The selector belongs to Zensical's theme. The tool mike is not needed: its version for Zensical is not on PyPI.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from spark_kafka_sink import __version__

DOCS = Path(__file__).resolve().parents[1] / "docs"
CONFIG = DOCS / "zensical.toml"
_REDIRECT = (
    '<!doctype html><meta charset="utf-8"><title>Documentation</title><meta http-equiv="refresh" content="0; url={}/">'
)


def build_public_config(repository: str) -> str:
    """Return the configuration of the site, with the repository and the version selector."""
    repository_settings = f'repo_url = "{repository.rstrip("/")}"\nedit_uri = "edit/main/docs"\n'
    return (
        CONFIG.read_text().replace("docs_dir", f"{repository_settings}docs_dir", 1)
        + '\n[project.extra.version]\nprovider = "mike"\n'
    )


def build_site(repository: str, docs: Path = DOCS) -> Path:
    """Build the site with links to the repository. Return the folder of the site."""
    config = docs / "public.toml"
    config.write_text(build_public_config(repository))
    try:
        command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", str(config)]
        subprocess.run(command, cwd=DOCS.parent, check=True)
    finally:
        config.unlink()
    (docs / "site" / config.name).unlink()  # everything in the folder of the configuration belongs to the site
    return docs / "site"


def add_version(site: Path, folder: Path, version: str = __version__) -> None:
    """Copy a built site to the folder of all versions, add it to versions.json and redirect to the newest version."""
    shutil.rmtree(folder / version, ignore_errors=True)
    shutil.copytree(site, folder / version)
    versions_file = folder / "versions.json"
    published_entries = json.loads(versions_file.read_text()) if versions_file.exists() else []
    versions = {entry["version"] for entry in published_entries} | {version}
    newest_version, *older_versions = sorted(versions, key=_parse_version, reverse=True)
    entries = [{"version": newest_version, "title": newest_version, "aliases": ["latest"]}]
    entries += [{"version": older_version, "title": older_version, "aliases": []} for older_version in older_versions]
    versions_file.write_text(json.dumps(entries, indent=2) + "\n")
    (folder / "index.html").write_text(_REDIRECT.format(newest_version) + "\n")


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of all published versions")
    parser.add_argument("repository", help="address of the repository, for the links to edit a page")
    arguments = parser.parse_args()
    add_version(build_site(arguments.repository), arguments.folder)
