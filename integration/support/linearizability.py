"""The checker of histories of the decision log: a program in Go that uses Porcupine (tools/linearizability)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from integration.support.artifacts import ROOT

SOURCE = ROOT / "tools" / "linearizability"


def build_checker(folder: Path) -> Path:
    """Build the program in the folder, and return its path."""
    path = folder / "linearizability"
    subprocess.run(["go", "build", "-o", path, "."], cwd=SOURCE, check=True)
    return path


def run_checker(checker: Path, *files: Path) -> tuple[int, str]:
    """Check the histories in the files. Return the exit status and the output."""
    done = subprocess.run([checker, *files], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def check_histories(checker: Path, *files: Path) -> str:
    """Check that the histories in the files are linearizable. Return the counts."""
    status, output = run_checker(checker, *files)
    assert status == 0, output
    return output.strip()
