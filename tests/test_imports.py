"""Rules for imports: no cycles, few imports inside functions, and few modules in Spark workers."""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.imports import PACKAGE, ROOT, Import, find_cycles, find_detached_comments, imports, modules


class LazyImport(NamedTuple):
    """An allowed import inside functions: `importers` (patterns) may import `imported`. Others must be at the top."""

    imported: str
    importers: tuple[str, ...]
    reason: str


_COMMANDS = "a command loads what it needs when it runs: `pykafka --help` is there at once"

LAZY_IMPORTS = (
    LazyImport("client.*", ("cli.client_options", "cli.doctor"), _COMMANDS),
    LazyImport("preflight*", ("cli.client_options", "cli.doctor"), _COMMANDS),
    LazyImport("requests.*", ("cli.*",), _COMMANDS),
    LazyImport(
        "producer.*",
        (
            "cli.client_options",
            "cli.bench",
            "cli.doctor",
            "cli.produce",
            "cli.transactions",
            "cli.verifiable_producer",
        ),
        _COMMANDS,
    ),
    LazyImport("network.system", ("cli.bench",), _COMMANDS),
    LazyImport("reader.*", ("cli.cat", "cli.topics", "cli.verify"), _COMMANDS),
    LazyImport("reports.*", ("cli.doctor", "cli.report", "cli.verify"), _COMMANDS),
    LazyImport("spark.*", ("cli.doctor",), _COMMANDS),
    LazyImport("exactly_once.*", ("cli.transactions",), _COMMANDS),
    LazyImport("broker.*", ("cli.broker",), _COMMANDS),
    LazyImport("testing", ("cli.broker",), _COMMANDS),
    LazyImport("cli.*", ("cli.bench", "cli.broker", "cli.demo", "cli.produce"), _COMMANDS),
    LazyImport("pyarrow", ("cli.input_rows",), _COMMANDS),
    LazyImport("shtab", ("cli.completion",), "optional dependency"),
    LazyImport("*", ("spark_kafka_sink",), "the names that users import: each is loaded when it is first used"),
    LazyImport("*", ("options.functions",), "a function of the user's own, by its name"),
    LazyImport(
        "protocol.messages.*", ("protocol.messages",), "the file of one message, by its key, when it is first used"
    ),
    LazyImport("broker.handlers.*", ("broker.handlers",), "the handler of one API, by its key, when it is first used"),
    LazyImport("lz4.frame", ("records.compression",), "optional dependency"),
    LazyImport("gssapi", ("sasl.gssapi",), "optional dependency"),
    LazyImport("chispa", ("testing.dataframes",), "optional dependency"),
    LazyImport("google.protobuf*", ("formats.protobuf_descriptor",), "optional dependency"),
    LazyImport("tqdm", ("producer.progress_bar",), "optional dependency"),
    LazyImport("cryptography.*", ("network.security.assertions", "network.security.keystores"), "optional dependency"),
    LazyImport("trustme", ("testing.security_setup",), "optional dependency"),
    LazyImport("pyspark.*", ("testing.*",), "the broker for tests is of use without Spark"),
    LazyImport("testing", ("pytest_plugin",), "pytest loads the plugin in every project of this environment"),
    LazyImport(
        "pyspark.sql.*", ("spark.patches.*",), "Spark Connect is an optional dependency, and classic Spark beside it"
    ),
    LazyImport(
        "pyspark.sql.pandas.functions", ("spark.pyspark_versions",), "newer versions of pyspark have other names"
    ),
    LazyImport("pandas", ("spark.pyspark_versions",), "needed with pyspark 4.0 only"),
    LazyImport(
        "py4j.protocol",
        ("spark.concurrent_tasks", "spark.patches.lineage_hooks"),
        "a client of Spark Connect need not have it",
    ),
    LazyImport(
        "network.security.*",
        ("network.channel_builders", "network.security_config", "preflight.certificate_checks"),
        "not for connections without TLS and SASL",
    ),
    LazyImport(
        "producer.transactions.*",
        ("producer.sending.*",),
        "not for a producer without a transactional.id",
    ),
    LazyImport("producer.record_digests", ("spark.write_task",), "only for writes with receipts"),
    LazyImport("records.record_hash", ("producer.results",), "only for writes with receipts"),
    LazyImport("requests.find_coordinator", ("requests.engine",), "not for a producer without a transactional.id"),
    LazyImport(
        "producer.transaction_waits", ("producer.transactional",), "not for a producer without a transactional.id"
    ),
    LazyImport("spark.exactly_once", ("spark.datasource", "spark.writer"), "not for a write that is at least once"),
    LazyImport("spark.lineage*", ("spark.patches.lineage_hooks",), "optional dependency, for writes with lineage only"),
    LazyImport("pyspark.sql.pandas.types", ("spark.arrow_types",), "only for Sail, whose schemas are Arrow schemas"),
    LazyImport("spark.report_publishing", ("spark.writer",), "reports are made on the driver; not for tasks"),
    LazyImport("reports.write_report", ("spark.task_report",), "reports are made on the driver; not for tasks"),
    LazyImport(
        "producer.batching.batch_splitting", ("producer.batching.accumulator",), "rare, and it needs the decoder"
    ),
    LazyImport(
        "producer.table*", ("producer.table_calls",), "with the formats; not for a task of Spark, which has columns"
    ),
    LazyImport("producer.progress_bar", ("producer.table_calls",), "with what it draws; not for a task of Spark"),
    LazyImport(
        "asyncio",
        ("producer.futures", "producer.producer", "producer.table_calls"),
        "as long as all of a worker's network takes, and for few callers",
    ),
    LazyImport("pyarrow.fs", ("reports.store",), "clients of S3 and HDFS come with it; only for reports in files"),
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
    "spark.lineage",
    "spark.lineage_events",
    "spark.lineage_sender",
    "spark.options.delivery",
    "spark.options.parse",
    "spark.patches",
)
"""Packages and modules that a Spark worker must not load for a plain write."""


def short(module: str) -> str:
    return module.removeprefix(f"{PACKAGE}.")


FILES = modules()


@pytest.fixture(scope="module")
def package_imports() -> list[Import]:
    """All imports of the package. This is a fixture, because parsing all files would slow down test collection."""
    return imports(FILES)


def is_allowed(import_: Import, allowed: LazyImport) -> bool:
    return fnmatchcase(short(import_.imported), allowed.imported) and any(
        fnmatchcase(short(import_.importer), importer) for importer in allowed.importers
    )


def test_modules_have_no_import_cycles(
    package_imports: list[Import],
) -> None:
    assert find_cycles((i.importer, i.imported) for i in package_imports if i.imported in FILES) == []


def test_imports_inside_functions_are_allowed(package_imports: list[Import]) -> None:
    assert [
        f"{short(i.importer)}:{i.line} {short(i.imported)}"
        for i in package_imports
        if i.in_function and not any(is_allowed(i, allowed) for allowed in LAZY_IMPORTS)
    ] == []


@pytest.mark.parametrize(
    "allowed", LAZY_IMPORTS, ids=lambda allowed: f"{allowed.imported} from {' '.join(allowed.importers)}"
)
def test_every_allowed_local_import_is_used(allowed: LazyImport, package_imports: list[Import]) -> None:
    assert any(i.in_function and is_allowed(i, allowed) for i in package_imports)


def test_finds_cycles_and_imports_inside_functions(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "__init__.py").write_text("")
    (tmp_path / "p" / "a.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.b import B\n")
    (tmp_path / "p" / "b.py").write_text("import p.c\n")
    (tmp_path / "p" / "c.py").write_text("def f():\n    from p import a, d\n")
    (tmp_path / "p" / "d.py").write_text("from p import a\n")
    files = modules(tmp_path, "p")
    found = imports(files)
    assert find_cycles((i.importer, i.imported) for i in found) == [["p.a", "p.b", "p.c", "p.d"]]
    assert [i for i in found if i.in_function] == [
        Import("p.c", "p.a", 2, True),
        Import("p.c", "p.d", 2, True),
    ]
    assert find_cycles((i.importer, i.imported) for i in found if not i.in_function) == []


def test_finds_modules_imported_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        "import importlib\ndef f(x):\n    importlib.import_module('b.c')\n"
        "    import_module(f'{__name__}.{x}')\n    __import__(x)\n"
    )
    assert [(i.imported, i.line) for i in imports({"p.a": path}) if i.in_function] == [
        ("b.c", 3),
        ("p.a.*", 4),
        ("*", 5),
    ]


def test_modules_have_no_detached_comments() -> None:
    assert {short(name): lines for name, path in FILES.items() if (lines := find_detached_comments(path))} == {}


def test_finds_detached_comments(tmp_path: Path) -> None:
    glued = tmp_path / "glued.py"
    glued.write_text(
        "# One begins.\n\nA = [\n# in it\n]\n\n# Why.\nX = 1\n\n# Another one.\n\ndef f(): ...\n\n\n# --- in a task\n\n"
        "# And\n# one more.\n\n\ndef g(): ...\n"
    )
    assert find_detached_comments(glued) == [1, 10, 17]


def test_spark_worker_loads_only_modules_for_plain_writes() -> None:
    """Runs in a new process, which loads the same modules as a worker that has unpickled a writer."""
    code = f"import sys, {PACKAGE}.spark.writer; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {short(name) for name in done.stdout.split() if name.startswith(f"{PACKAGE}.")}
    assert "producer.producer" in loaded
    assert [
        name for name in sorted(loaded) if any(f"{name}.".startswith(f"{prefix}.") for prefix in NOT_IN_A_WORKER)
    ] == []
