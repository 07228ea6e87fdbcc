"""Who reads clocks and opens sockets: network/system.py, and the few that docs/architecture.md names with a reason."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "spark_kafka_sink"
CLOCKS_AND_SOCKETS = {"asyncio", "http", "sched", "select", "selectors", "socket", "socketserver", "time"}
"""Modules of the standard library, with all that is in them; of urllib only urllib.request opens sockets."""

DOORS = {
    "network/system.py",
    "network/transport.py",
    "network/http_exchange.py",
    "network/security/oidc.py",
    "formats/schema_registry.py",
    "producer/futures.py",
    "producer/table_calls.py",
    "spark/pace.py",
    "spark/pool.py",
    "spark/publish.py",
    "spark/worker_process.py",
    "spark/write_task.py",
    "signal_wait.py",
    "cli/demo_job.py",
    "broker/acceptor.py",
    "broker/cluster.py",
    "broker/listener_security.py",
    "broker/listening.py",
    "broker/socket_server.py",
}


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_clocks_and_sockets_are_imported_by_their_doors_alone() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(name.split(".")[0] in CLOCKS_AND_SOCKETS or name == "urllib.request" for name in imported(path))
    }
    assert found == DOORS


def test_the_architecture_names_every_door() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert [door for door in sorted(DOORS) if f"`{door}`" not in text] == []
