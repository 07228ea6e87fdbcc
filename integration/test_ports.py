"""PortBlock: concurrent test runs never use the same ports."""

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


def test_reserves_block_against_other_owners_and_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A separate directory for locks, because a concurrent test run may have reserved these blocks.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(ports, "FIRST_PORT", 31_920)
    monkeypatch.setattr(ports, "LAST_PORT", 32_000)
    first, second = PortBlock(), PortBlock()
    assert first.start != second.start
    code = (
        "from integration.support import ports; ports.FIRST_PORT, ports.LAST_PORT = 31_920, 32_000; ports.PortBlock()"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "are reserved by other test runs" in result.stderr
    first.close()
    reserved_again = PortBlock()
    assert reserved_again.start == first.start
    for block in (reserved_again, second):
        block.close()


def test_skips_port_in_use() -> None:
    block = PortBlock()
    try:
        first = next(block.free_ports())
        with socket.create_server(("127.0.0.1", first)):
            free = list(block.free_ports())
            assert first not in free
            assert len(free) < BLOCK_PORTS
    finally:
        block.close()


def test_free_port_can_be_bound_immediately() -> None:
    block = PortBlock()
    try:
        free = block.free_ports()
        for _ in range(2):
            with socket.create_server(("127.0.0.1", next(free))):
                pass
    finally:
        block.close()
