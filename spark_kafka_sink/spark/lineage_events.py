"""The OpenLineage run of a write, built from Spark's settings, and the events of the run, without I/O.

The settings are those of OpenLineage's Spark listener (`spark.openlineage.*`). Names follow the listener's rules, so
that the sink's events and the listener's events belong to the same job. This module requires the package
`openlineage-python`, so only lineage.py imports it, and only for writes with lineage.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from typing import Any
from uuid import UUID

from openlineage.client.event_v2 import Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    ownership_job,
    parent_run,
    processing_engine_run,
    schema_dataset,
    tags_job,
    tags_run,
)

from spark_kafka_sink.spark.constants import FORMAT_NAME

_PACKAGE = "spark-kafka-sink"
_DEFAULT_NAMESPACE = "default"
_TAG_SOURCE = "CONFIG"
"""The source that the listener sets for tags from Spark's settings."""
_RESOLVER_TYPE_PATTERN = re.compile(r"dataset\.namespaceResolvers\.(?P<name>.+)\.type")
_OWNER_PREFIX = "job.owners."


def _find_version() -> str | None:
    """Return this package's version, or None if it is not installed (for example with `--py-files`)."""
    try:
        return metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:
        return None


_VERSION = _find_version()
PRODUCER = f"https://pypi.org/project/{_PACKAGE}/{_VERSION or ''}"


@dataclass(frozen=True)
class SparkWrite:
    """The properties of a write that Spark provides."""

    app_name: str
    spark_version: str
    columns: tuple[tuple[str, str], ...]
    """Name and type of each column that the sink uses."""
    is_stream: bool
    uses_map_in_arrow: bool


@dataclass(frozen=True)
class ParentRun:
    """The parent or the root of a LineageRun: a run of a different job."""

    run_id: str
    job_namespace: str
    job_name: str


@dataclass(frozen=True)
class LineageRun:
    """A run of a job: a batch write, or a streaming query from its start to its end. No field contains credentials."""

    run_id: str
    job_namespace: str
    job_name: str
    is_stream: bool
    kafka_namespace: str
    topic: str | None
    """The topic of all rows; None if each row names its own topic."""
    columns: tuple[tuple[str, str], ...]
    """Name and type of each column that the sink uses."""
    spark_version: str
    parent: ParentRun | None
    root: ParentRun | None
    job_tags: tuple[tuple[str, str], ...]
    """Key and value of each tag of the job."""
    run_tags: tuple[tuple[str, str], ...]
    """Key and value of each tag of the run."""
    owners: tuple[tuple[str, str], ...]
    """Type and name of each owner."""
    disabled_facets: frozenset[str]


@dataclass(frozen=True)
class WriteStatistics:
    """The rows that a run has written so far to each topic, and their total size in all topics."""

    rows_by_topic: Mapping[str, int]
    total_bytes: int


def build_run(run_id: str, settings: Mapping[str, str], options: Mapping[str, str], write: SparkWrite) -> LineageRun:
    """Build a run from the settings and the options of its write.

    `settings`: the listener's settings, without the prefix `spark.openlineage.`.
    `options`: the write's options, with lowercase names.
    """
    namespace = settings.get("namespace") or _DEFAULT_NAMESPACE
    app_name = normalize_name(settings.get("appName") or write.app_name)
    parent, root = _find_parent_and_root(settings, namespace, app_name)
    appends_table_name = settings.get("jobName.appendDatasetName", "").lower() != "false"
    command_name = _build_listener_command_name(write, appends_table_name=appends_table_name)
    return LineageRun(
        run_id=run_id,
        job_namespace=namespace,
        job_name=f"{app_name}.{command_name}",
        is_stream=write.is_stream,
        kafka_namespace=_build_kafka_namespace(options["kafka.bootstrap.servers"], settings),
        topic=options.get("topic"),
        columns=write.columns,
        spark_version=write.spark_version,
        parent=parent,
        root=root,
        job_tags=tuple(_parse_tags(settings.get("job.tags", ""))),
        run_tags=tuple(_parse_tags(settings.get("run.tags", ""))),
        owners=tuple(
            (name.removeprefix(_OWNER_PREFIX), owner)
            for name, owner in settings.items()
            if name.startswith(_OWNER_PREFIX)
        ),
        disabled_facets=_find_disabled_facets(settings),
    )


def normalize_name(name: str) -> str:
    """Convert a name to snake case in the same way as the listener's class NameNormalizer.

    Accents are removed. Words are split within camel case, around acronyms and after digits.
    """
    trimmed_name = re.sub(r"^[^A-Za-z0-9_]+|[^A-Za-z0-9_]+$", "", name)
    decomposed_name = unicodedata.normalize("NFKD", trimmed_name)
    # The categories that start with M are those of combining marks, such as accents.
    text = "".join(character for character in decomposed_name if not unicodedata.category(character).startswith("M"))
    text = re.sub(r"([a-z])([A-Z])", r"\1 \2", text)  # dailyOrders -> daily Orders
    text = re.sub(r"(?<!^)([A-Z])([a-z])", r" \1\2", text)  # JSONExport -> JSON Export
    text = re.sub(r"([0-9])([A-Z])", r"\1 \2", text)  # V2API -> V2 API
    return re.sub(r"[^a-z0-9]+", "_", text.lower())


def _build_listener_command_name(write: SparkWrite, *, appends_table_name: bool) -> str:
    """Return the command name that the listener will report for this write.

    The listener derives the name from a node of Spark's plan. For a stream, that is write_to_data_source_v2 in every
    version of Spark. For a batch write, it depends on the version:

        write          Spark 3.5              4.0 and 4.1     4.2 and later
        mapInArrow     python_map_in_arrow    map_in_arrow    map_in_arrow
        data source    -                      append_data     append_data_pykafka

    Spark 3.5 has no Python data sources. Spark 4.2 appends the table's name, which is FORMAT_NAME, to the node's name.

    Limitation: if rows are shuffled before mapInArrow, the listener uses a different name. Its events and ours are then
    attributed to different jobs.

    `appends_table_name`: whether the listener itself also appends the table's name, after a dot. It does so only for
    writes through the data source.
    """
    version = tuple(int(number) for number in write.spark_version.split(".")[:2])
    if write.is_stream:
        return "write_to_data_source_v2"
    if write.uses_map_in_arrow:
        return "map_in_arrow" if version >= (4, 0) else "python_map_in_arrow"
    command = f"append_data_{FORMAT_NAME}" if version >= (4, 2) else "append_data"
    return f"{command}.{FORMAT_NAME}" if appends_table_name else command


def _find_parent_and_root(
    settings: Mapping[str, str], namespace: str, app_name: str
) -> tuple[ParentRun | None, ParentRun | None]:
    """Return the parent and the root of the run, each None if the settings do not name it.

    The parent is the listener's run of the Spark application, if the setting `applicationRunId` contains its id.
    Otherwise, the listener generates an id that we cannot know. The parent is then the run that started the
    application.

    The root is the run in the settings `rootParent*`. Missing values are taken from the run that started the
    application or, if there is none, from the parent.
    """
    launching_run = _build_parent_run(
        settings,
        run_id_setting="parentRunId",
        namespace_setting="parentJobNamespace",
        name_setting="parentJobName",
    )
    application_run_id = settings.get("applicationRunId", "")
    parent = ParentRun(application_run_id, namespace, app_name) if is_uuid(application_run_id) else launching_run
    root = _build_parent_run(
        settings,
        run_id_setting="rootParentRunId",
        namespace_setting="rootParentJobNamespace",
        name_setting="rootParentJobName",
        default=launching_run or parent,
    )
    return parent, root


def _build_parent_run(
    settings: Mapping[str, str],
    *,
    run_id_setting: str,
    namespace_setting: str,
    name_setting: str,
    default: ParentRun | None = None,
) -> ParentRun | None:
    """Build a parent or root run from three settings.

    A missing setting, or a run id that is not a valid UUID, is taken from `default`. Return None if any value is still
    missing.
    """
    run_id = settings.get(run_id_setting, "")
    if not is_uuid(run_id):
        run_id = ""
    job_namespace = settings.get(namespace_setting, "")
    job_name = settings.get(name_setting, "")
    if default is not None:
        run_id = run_id or default.run_id
        job_namespace = job_namespace or default.job_namespace
        job_name = job_name or default.job_name
    return ParentRun(run_id, job_namespace, job_name) if run_id and job_namespace and job_name else None


def is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def _build_kafka_namespace(bootstrap_servers: str, settings: Mapping[str, str]) -> str:
    """Return the namespace of the topics: `kafka://host:port` for the first bootstrap server.

    Settings can define a resolver of type `hostList`, which replaces each host in its list with the resolver's name. As
    in the listener's HostListNamespaceResolver, a host matches any part of the namespace, and all its occurrences are
    replaced.
    """
    first_server = bootstrap_servers.split(",")[0].strip()
    # Remove the security protocol from a server such as SASL_SSL://host:9092.
    host_and_port = first_server.rpartition("://")[2]
    namespace = f"kafka://{host_and_port}"
    for setting_name, resolver_type in settings.items():
        resolver_match = _RESOLVER_TYPE_PATTERN.fullmatch(setting_name)
        if resolver_match is None or resolver_type != "hostList":
            continue
        resolver_prefix = setting_name.removesuffix("type")
        if settings.get(f"{resolver_prefix}schema", "kafka") != "kafka":
            continue
        for host in _parse_list(settings.get(f"{resolver_prefix}hosts", "")):
            if host.lower() in namespace.lower():
                replacement = resolver_match["name"].replace("\\", r"\\")  # re.sub interprets backslashes
                return re.sub(re.escape(host), replacement, namespace, flags=re.IGNORECASE)
    return namespace


def _parse_list(text: str) -> list[str]:
    """Parse a list in the listener's format: in brackets and separated by semicolons."""
    return [item.strip() for item in text.removeprefix("[").removesuffix("]").split(";") if item.strip()]


def _parse_tags(text: str) -> Iterator[tuple[str, str]]:
    """Yield the key and value of each tag in a string such as `key:value;label`. The value of a label is `true`."""
    for tag in _parse_list(text):
        key, _, value = tag.partition(":")
        yield key, value or "true"


def _find_disabled_facets(settings: Mapping[str, str]) -> frozenset[str]:
    """Return the facets that the list `facets.disabled` or a setting `facets.<name>.disabled` disables."""
    disabled_facets = set(_parse_list(settings.get("facets.disabled", "")))
    for name, value in settings.items():
        if name.startswith("facets.") and name.endswith(".disabled") and value.lower() == "true":
            disabled_facets.add(name.removeprefix("facets.").removesuffix(".disabled"))
    return frozenset(disabled_facets)


def build_event(
    run: LineageRun,
    event_type: str,
    event_time: datetime,
    statistics: WriteStatistics | None = None,
    error_message: str | None = None,
) -> RunEvent:
    """Build an event of the run.

    `event_type`: the name of a RunState, such as `START`.
    `statistics`: the rows that the run had written at `event_time`; None at the run's start, or if they are unknown.
    `error_message`: why the run failed or was aborted; None for all other events.
    """
    return RunEvent(
        eventType=RunState[event_type],
        eventTime=event_time.isoformat(),
        run=Run(run.run_id, _select_facets(run, _build_run_facets(run, error_message))),
        job=Job(run.job_namespace, run.job_name, _select_facets(run, _build_job_facets(run))),
        producer=PRODUCER,
        inputs=[],
        outputs=_build_outputs(run, statistics),
    )


def _select_facets(run: LineageRun, facets: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facets that are not None and not disabled by a setting. Set this package as their producer."""
    enabled_facets = {
        name: facet for name, facet in facets.items() if facet is not None and name not in run.disabled_facets
    }
    for facet in enabled_facets.values():
        facet._producer = PRODUCER
    return enabled_facets


def _build_run_facets(run: LineageRun, error_message: str | None) -> dict[str, Any]:
    """Build the facets of the run, by name."""
    facets: dict[str, Any] = {
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
            version=run.spark_version, name="spark", openlineageAdapterVersion=_VERSION
        )
    }
    if run.parent is not None:
        facets["parent"] = _build_parent_facet(run.parent, run.root)
    if run.run_tags:
        tags = [tags_run.TagsRunFacetFields(*tag, _TAG_SOURCE) for tag in run.run_tags]
        facets["tags"] = tags_run.TagsRunFacet(tags)
    if error_message is not None:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            message=error_message, programmingLanguage="PYTHON"
        )
    return facets


def _build_parent_facet(parent: ParentRun, root: ParentRun | None) -> parent_run.ParentRunFacet:
    """Build the facet with the parent and the root of a run. Without a root, the parent is also the root."""
    root = root or parent
    return parent_run.ParentRunFacet(
        run=parent_run.Run(parent.run_id),
        job=parent_run.Job(parent.job_namespace, parent.job_name),
        root=parent_run.Root(
            run=parent_run.RootRun(root.run_id), job=parent_run.RootJob(root.job_namespace, root.job_name)
        ),
    )


def _build_job_facets(run: LineageRun) -> dict[str, Any]:
    """Build the facets of the run's job, by name."""
    facets: dict[str, Any] = {
        "jobType": job_type_job.JobTypeJobFacet(
            processingType="STREAMING" if run.is_stream else "BATCH", integration="SPARK", jobType="SQL_JOB"
        )
    }
    if run.job_tags:
        tags = [tags_job.TagsJobFacetFields(*tag, _TAG_SOURCE) for tag in run.job_tags]
        facets["tags"] = tags_job.TagsJobFacet(tags)
    if run.owners:
        owners = [ownership_job.Owner(name=name, type=owner_type) for owner_type, name in run.owners]
        facets["ownership"] = ownership_job.OwnershipJobFacet(owners)
    return facets


def _build_outputs(run: LineageRun, statistics: WriteStatistics | None) -> list[OutputDataset]:
    """Build a dataset for each topic that received rows, plus the topic named in the options, if any."""
    topics = set() if statistics is None else set(statistics.rows_by_topic)
    if run.topic is not None:
        topics.add(run.topic)
    fields = [schema_dataset.SchemaDatasetFacetFields(name=name, type=type_) for name, type_ in run.columns]
    return [
        OutputDataset(
            namespace=run.kafka_namespace,
            name=topic,
            facets=_select_facets(run, {"schema": schema_dataset.SchemaDatasetFacet(fields=fields)}),
            outputFacets=_select_facets(
                run, {"outputStatistics": _build_statistics_facet(statistics, topic, is_only_topic=len(topics) == 1)}
            ),
        )
        for topic in sorted(topics)
    ]


def _build_statistics_facet(
    statistics: WriteStatistics | None, topic: str, *, is_only_topic: bool
) -> output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet | None:
    """Build the facet with a topic's row count and, if it is the only topic, its size.

    The size of each topic is not known if there are several, because the bytes are counted across all topics.
    """
    if statistics is None:
        return None
    return output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=statistics.rows_by_topic.get(topic, 0), size=statistics.total_bytes if is_only_topic else None
    )
