"""Each file is one thing; no circle of files; an import inside of a function only at a door that is named here; what a
Spark worker loads."""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.imports import PACKAGE, ROOT, Import, circles, imports, modules, second_beginnings


class Door(NamedTuple):
    """`imported` may be loaded inside of functions of these files, as patterns; everywhere else at the top alone."""

    imported: str
    importers: tuple[str, ...]
    reason: str


_COMMANDS = "a command loads what it needs when it runs: `pykafka --help` is there at once"

DOORS = (
    Door("client.*", ("cli.client_options", "cli.doctor"), _COMMANDS),
    Door("preflight*", ("cli.client_options", "cli.doctor"), _COMMANDS),
    Door("requests.*", ("cli.*",), _COMMANDS),
    Door("producer.*", ("cli.client_options", "cli.bench", "cli.doctor", "cli.produce", "cli.transactions"), _COMMANDS),
    Door("network.system", ("cli.bench",), _COMMANDS),
    Door("reader.*", ("cli.cat", "cli.topics"), _COMMANDS),
    Door("reports.*", ("cli.doctor", "cli.report"), _COMMANDS),
    Door("spark.*", ("cli.doctor",), _COMMANDS),
    Door("exactly_once.*", ("cli.transactions",), _COMMANDS),
    Door("broker.*", ("cli.broker",), _COMMANDS),
    Door("testing", ("cli.broker",), _COMMANDS),
    Door("cli.*", ("cli.bench", "cli.broker", "cli.demo", "cli.produce"), _COMMANDS),
    Door("pyarrow", ("cli.produced_rows",), _COMMANDS),
    Door("shtab", ("cli.completion",), "optional dependency"),
    Door("*", ("spark_kafka_sink",), "the names that users import: each is loaded when it is first used"),
    Door("*", ("options.functions",), "a function of the user's own, by its name"),
    Door("protocol.messages.*", ("protocol.messages",), "the file of one message, by its key, when it is first used"),
    Door("broker.handlers.*", ("broker.handlers",), "the handler of one API, by its key, when it is first used"),
    Door("lz4.frame", ("records.compression",), "optional dependency"),
    Door("gssapi", ("sasl.gssapi",), "optional dependency"),
    Door("chispa", ("testing.dataframes",), "optional dependency"),
    Door("google.protobuf*", ("formats.protobuf_descriptor",), "optional dependency"),
    Door("tqdm", ("producer.progress_bar",), "optional dependency"),
    Door("cryptography.*", ("network.security.assertions", "network.security.keystores"), "optional dependency"),
    Door("trustme", ("testing.security_setup",), "optional dependency"),
    Door("pyspark.*", ("testing.*",), "the broker for tests is of use without Spark"),
    Door("testing", ("pytest_plugin",), "pytest loads the plugin in every project of this environment"),
    Door("pyspark.sql.*", ("spark.patches.*",), "Spark Connect is an optional dependency, and classic Spark beside it"),
    Door("py4j.protocol", ("spark.concurrent_tasks",), "a client of Spark Connect need not have it"),
    Door(
        "network.security.*",
        ("network.channels", "network.security_config", "preflight.certificates"),
        "not for connections without TLS and SASL",
    ),
    Door(
        "producer.transactions.*",
        ("producer.sending.*",),
        "not for a producer without a transactional.id",
    ),
    Door("producer.transaction_waits", ("producer.transactional",), "not for a producer without a transactional.id"),
    Door("spark.exactly_once", ("spark.datasource", "spark.writer"), "not for a write that is at least once"),
    Door("spark.report_publishing", ("spark.writer",), "reports are made on the driver; not for tasks"),
    Door("reports.write_report", ("spark.task_report",), "reports are made on the driver; not for tasks"),
    Door("producer.batching.split", ("producer.batching.accumulator",), "rare, and it needs the decoder"),
    Door("producer.table*", ("producer.table_calls",), "with the formats; not for a task of Spark, which has columns"),
    Door("producer.progress_bar", ("producer.table_calls",), "with what it draws; not for a task of Spark"),
    Door(
        "asyncio",
        ("producer.futures", "producer.producer", "producer.table_calls"),
        "as long as all of a worker's network takes, and for few callers",
    ),
    Door("pyarrow.fs", ("reports.store",), "clients of S3 and HDFS come with it; only for reports in files"),
)

NOT_IN_A_WORKER = (
    "broker",
    "preflight",
    "exactly_once",
    "formats",
    "network.security",
    "network.tls",
    "producer.progress_bar",
    "producer.table_plan",
    "producer.table_types",
    "producer.tables",
    "producer.typed_options",
    "requests.blocking",
    "requests.topics",
    "requests.transactions",
    "producer.transaction_waits",
    "producer.transactions",
    "protocol.messages.fetch",
    "reader",
    "records.decoder",
    "reports",
    "sasl",
    "spark.columns",
    "spark.exactly_once",
    "spark.options.delivery",
    "spark.options.parse",
    "spark.patches",
)
"""Rooms that a task of a plain write never needs."""


def short(module: str) -> str:
    return module.removeprefix(f"{PACKAGE}.")


FILES = modules()


@pytest.fixture(scope="module")
def package_imports() -> list[Import]:
    """All files are parsed for it: not where the tests are only collected."""
    return imports(FILES)


def is_at(each: Import, door: Door) -> bool:
    return fnmatchcase(short(each.imported), door.imported) and any(
        fnmatchcase(short(each.importer), importer) for importer in door.importers
    )


def test_no_files_import_each_other_in_a_circle_not_even_for_types_or_in_functions(
    package_imports: list[Import],
) -> None:
    assert circles((each.importer, each.imported) for each in package_imports if each.imported in FILES) == []


def test_an_import_inside_of_a_function_is_at_a_door(package_imports: list[Import]) -> None:
    assert [
        f"{short(each.importer)}:{each.line} {short(each.imported)}"
        for each in package_imports
        if each.in_function and not any(is_at(each, door) for door in DOORS)
    ] == []


@pytest.mark.parametrize("door", DOORS, ids=lambda door: f"{door.imported} from {' '.join(door.importers)}")
def test_each_door_is_used(door: Door, package_imports: list[Import]) -> None:
    assert any(each.in_function and is_at(each, door) for each in package_imports)


def test_a_circle_is_found_and_where_an_import_stands(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "__init__.py").write_text("")
    (tmp_path / "p" / "a.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.b import B\n")
    (tmp_path / "p" / "b.py").write_text("import p.c\n")
    (tmp_path / "p" / "c.py").write_text("def f():\n    from p import a, d\n")
    (tmp_path / "p" / "d.py").write_text("from p import a\n")
    files = modules(tmp_path, "p")
    found = imports(files)
    assert circles((each.importer, each.imported) for each in found) == [["p.a", "p.b", "p.c", "p.d"]]
    assert [each for each in found if each.in_function] == [
        Import("p.c", "p.a", 2, True),
        Import("p.c", "p.d", 2, True),
    ]
    assert circles((each.importer, each.imported) for each in found if not each.in_function) == []


def test_a_module_that_is_imported_by_its_name_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        "import importlib\ndef f(x):\n    importlib.import_module('b.c')\n"
        "    import_module(f'{__name__}.{x}')\n    __import__(x)\n"
    )
    assert [(each.imported, each.line) for each in imports({"p.a": path}) if each.in_function] == [
        ("b.c", 3),
        ("p.a.*", 4),
        ("*", 5),
    ]


def test_no_file_begins_another_one_in_its_middle() -> None:
    assert {short(name): lines for name, path in FILES.items() if (lines := second_beginnings(path))} == {}


def test_the_beginning_of_another_file_is_found(tmp_path: Path) -> None:
    glued = tmp_path / "glued.py"
    glued.write_text(
        "# One begins.\n\nA = [\n# in it\n]\n\n# Why.\nX = 1\n\n# Another one.\n\ndef f(): ...\n\n\n# --- in a task\n\n"
        "# And\n# one more.\n\n\ndef g(): ...\n"
    )
    assert second_beginnings(glued) == [1, 10, 17]


def test_a_spark_worker_loads_no_room_that_a_plain_write_does_not_need() -> None:
    """In a process of its own: what is there where Spark has unpickled a writer."""
    code = f"import sys, {PACKAGE}.spark.writer; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {short(name) for name in done.stdout.split() if name.startswith(f"{PACKAGE}.")}
    assert "producer.producer" in loaded
    assert [name for name in sorted(loaded) if any(f"{name}.".startswith(f"{room}.") for room in NOT_IN_A_WORKER)] == []
