"""Two runs of these tests beside each other never take the same ports."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from integration.support import ports
from integration.support.artifacts import ROOT
from integration.support.ports import BLOCK_PORTS, PortBlock


def test_a_block_belongs_to_one_owner_also_beside_other_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Locks of its own: a run beside this one may have these blocks.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(ports, "FIRST", 31_920)
    monkeypatch.setattr(ports, "LAST", 32_000)
    one, other = PortBlock(), PortBlock()
    assert one.start != other.start
    code = "from integration.support import ports; ports.FIRST, ports.LAST = 31_920, 32_000; ports.PortBlock()"
    refused = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "are taken by other runs" in refused.stderr
    one.close()
    again = PortBlock()
    assert again.start == one.start
    for block in (again, other):
        block.close()


def test_a_port_that_is_listened_on_is_passed_over() -> None:
    block = PortBlock()
    try:
        first = next(block.free_ports())
        with socket.create_server(("127.0.0.1", first)):
            free = list(block.free_ports())
            assert first not in free
            assert len(free) < BLOCK_PORTS
    finally:
        block.close()


def test_a_port_is_free_as_soon_as_it_is_known() -> None:
    block = PortBlock()
    try:
        free = block.free_ports()
        for _ in range(2):
            with socket.create_server(("127.0.0.1", next(free))):
                pass
    finally:
        block.close()
