"""EventSender: sends OpenLineage events in the background, through the transports of `openlineage-python`.

The transport settings are those of OpenLineage's Spark listener.

Secret settings never reach the log. The OpenLineage package logs a transport's configuration at DEBUG, so headers, URL
parameters and passwords are set on the HTTP session instead of in the configuration. Errors are logged without their
text, which may contain the URL.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import requests
from openlineage.client.event_v2 import RunEvent
from openlineage.client.transport.console import ConsoleConfig, ConsoleTransport
from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.transport.http import HttpConfig, HttpTransport
from openlineage.client.transport.transport import Transport
from requests.adapters import HTTPAdapter

from spark_kafka_sink.errors import ConfigurationError, list_linked_errors
from spark_kafka_sink.spark.worker_log import LOGGER

_DEFAULT_ENDPOINT = "/api/v1/lineage"
_DEFAULT_TIMEOUT_MS = 5_000
_API_KEY_PARAMETER = "api_key"
"""URL parameter with an API key, which becomes an Authorization header."""
_MAX_QUEUED_EVENTS = 1_000
"""Maximum number of queued events. If a server does not respond, later events are dropped, to limit the memory."""
_UNSUPPORTED_TRANSPORT_MESSAGE = (
    "spark.openlineage.transport.type is '{}'. This sink supports only the http, console and file transports. Set one "
    "of them, or ignore this message if OpenLineage's Spark listener is all that you need."
)
_INVALID_URL_MESSAGE = (
    "spark.openlineage.transport.url is missing or has no scheme and host. Set it to the URL of the server."
)
_MISSING_LOCATION_MESSAGE = "spark.openlineage.transport.location is missing. Set it to the path of the file."


class EventSender:
    """Sends events in order. A background thread sends them, and ends when the queue is empty.

    `target`: a name for the destination in log messages.
    """

    def __init__(self, transport: Transport, target: str, session: requests.Session | None = None) -> None:
        self._transport = transport
        self._target = target
        self._session = session
        self._condition = threading.Condition()
        self._events: deque[RunEvent] = deque()
        self._is_running = False
        """Whether a thread is sending events: the background thread, or a thread that calls `flush`."""
        self._has_warned = False

    def submit(self, event: RunEvent) -> None:
        """Queue an event. If the queue is full, for example because the server does not respond, drop the event."""
        with self._condition:
            if len(self._events) >= _MAX_QUEUED_EVENTS:
                LOGGER.debug("Dropped an OpenLineage event, because %d events are waiting", _MAX_QUEUED_EVENTS)
                return
            self._events.append(event)
            if not self._is_running:
                self._is_running = self._start_thread()

    def flush(self, timeout_s: float) -> int:
        """Wait until all events are sent or the timeout has passed. Return the number of events that were not sent.

        If no background thread could be started, the calling thread sends the events itself.
        """
        deadline = time.monotonic() + timeout_s
        with self._condition:
            must_send = bool(self._events) and not self._is_running
            if must_send:
                # Prevent `submit` from starting a thread while the calling thread sends.
                self._is_running = True
        if must_send:
            try:
                self._send_all(deadline)
            except BaseException:  # for example KeyboardInterrupt
                with self._condition:
                    self._is_running = False  # so that a later call sends the remaining events
                raise
        with self._condition:
            self._condition.wait_for(lambda: not (self._events and self._is_running), deadline - time.monotonic())
            return len(self._events)

    def _start_thread(self) -> bool:
        """Start the background thread, and return whether it was started.

        If no thread can be started, the events stay in the queue until the next call of `submit` or `flush`.
        """
        try:
            threading.Thread(target=self._send_all, name="pykafka-lineage", daemon=True).start()
        except RuntimeError as error:  # no more threads can be started, or (Python 3.12) the interpreter is exiting
            LOGGER.debug("Could not start the thread that sends OpenLineage events: %s", error)
            return False
        return True

    def _send_all(self, deadline: float = math.inf) -> None:
        """Send events until the queue is empty or the deadline has passed. The caller must have set `_is_running`."""
        while time.monotonic() < deadline:
            # Remove the event only after it has been sent, so that `flush` counts it until then.
            self._send(self._events[0])
            with self._condition:
                self._events.popleft()
                if not self._events:
                    self._is_running = False
                    if self._session is not None:
                        # This closes the connections. The next event opens new connections.
                        self._session.close()
                    self._condition.notify_all()
                    return
        with self._condition:
            self._is_running = False

    def _send(self, event: RunEvent) -> None:
        """Send one event. Log an error as a warning if it is the first one, otherwise at DEBUG."""
        try:
            self._transport.emit(event)
        except Exception as error:  # anything that a transport or the user's token provider may raise
            cause = describe_error(error)
            if self._has_warned:
                LOGGER.debug("Could not send an OpenLineage event to %s: %s", self._target, cause)
                return
            self._has_warned = True
            LOGGER.warning(
                "Could not send an OpenLineage event to %s: %s. Writes are not affected, but their lineage is "
                "incomplete. Check the server and spark.openlineage.transport.*. Later errors are logged at DEBUG.",
                self._target,
                cause,
            )


def create_sender(settings: Mapping[str, str]) -> EventSender:
    """Create the sender for the listener's settings, without doing any I/O.

    Raise ConfigurationError if the settings are invalid or not supported.

    `settings`: the listener's settings, without the prefix `spark.openlineage.`.
    """
    transport_type = settings.get("transport.type") or "console"
    if transport_type == "console":
        return EventSender(ConsoleTransport(ConsoleConfig()), target="the log")
    if transport_type == "file":
        location = settings.get("transport.location")
        if not location:
            raise ConfigurationError(_MISSING_LOCATION_MESSAGE)
        return EventSender(FileTransport(FileConfig(log_file_path=location, append=True)), target=location)
    if transport_type != "http":
        raise ConfigurationError(_UNSUPPORTED_TRANSPORT_MESSAGE.format(transport_type))
    return _create_http_sender(settings)


def _create_http_sender(settings: Mapping[str, str]) -> EventSender:
    """Create a sender that posts events over HTTP. Raise ConfigurationError if the settings are invalid.

    The settings have the same meaning as for the listener: the scheme and the host come from the URL, the path from the
    setting `endpoint`, and an API key from the URL parameter `api_key`. The sender does not retry.
    """
    url_parts = _split_url(settings)
    if url_parts is None or not url_parts.scheme or not url_parts.hostname:
        raise ConfigurationError(_INVALID_URL_MESSAGE)
    session = _create_session(settings, url_parts)
    host_and_port = url_parts.netloc.rpartition("@")[2]
    url = f"{url_parts.scheme}://{host_and_port}"
    transport_config = {
        "url": url,
        "endpoint": "/" + (settings.get("transport.endpoint") or _DEFAULT_ENDPOINT).lstrip("/"),
        "timeout": _parse_timeout_seconds(settings.get("transport.timeoutInMillis") or str(_DEFAULT_TIMEOUT_MS)),
        "session": session,
        "adapter": HTTPAdapter(max_retries=0),
        # `auth` can stay in the configuration, because the OpenLineage package logs only the object that holds the API
        # key, not the key itself.
        "auth": _parse_auth(settings, url_parts),
    }
    if settings.get("transport.compression"):
        transport_config["compression"] = settings["transport.compression"]
    try:
        transport = HttpTransport(HttpConfig.from_dict(transport_config))
    except Exception as error:  # anything that the package or the user's token provider may raise
        raise ConfigurationError(
            f"The HTTP transport of OpenLineage rejects the settings ({type(error).__name__}). Check "
            "spark.openlineage.transport.auth.* and spark.openlineage.transport.compression."
        ) from None  # the text of the original error may contain a secret
    return EventSender(transport, target=url, session=session)


def _create_session(settings: Mapping[str, str], url_parts: SplitResult) -> requests.Session:
    """Create an HTTP session with the headers, the URL parameters and the password.

    They may contain secrets, so they are set on the session and not in the transport's configuration, which the
    OpenLineage package logs. The API key is not among the URL parameters, because it becomes a header (`_parse_auth`).
    """
    url_parameters = dict(parse_qsl(url_parts.query))
    url_parameters.pop(_API_KEY_PARAMETER, None)
    session = requests.Session()
    session.headers.update(_select_by_prefix(settings, "transport.headers."))
    session.params = url_parameters | _select_by_prefix(settings, "transport.urlParams.")
    if url_parts.username is not None:
        session.auth = (unquote(url_parts.username), unquote(url_parts.password or ""))
    return session


def _parse_auth(settings: Mapping[str, str], url_parts: SplitResult) -> dict[str, Any]:
    """Return the configuration of the transport's authentication. An API key in the URL takes precedence."""
    api_key = dict(parse_qsl(url_parts.query)).get(_API_KEY_PARAMETER)
    if api_key is not None:
        return {"type": "api_key", "apiKey": api_key}
    auth = _select_by_prefix(settings, "transport.auth.")
    if "tokenFields" in auth:
        auth["tokenFields"] = _parse_token_fields(auth["tokenFields"])
    return auth


def find_secrets(settings: Mapping[str, str]) -> list[str]:
    """Return the setting values that may be secret and must not be shown."""
    url_parts = _split_url(settings)
    secrets: list[str | None] = []
    if url_parts is not None:
        parameter_values = [value for _, value in parse_qsl(url_parts.query)]
        secrets += [url_parts.username, url_parts.password, *parameter_values]
    for prefix in ("transport.auth.", "transport.headers.", "transport.urlParams."):
        # `transport.auth.type` is a word such as api_key, which errors may show.
        secrets += [value for name, value in _select_by_prefix(settings, prefix).items() if name != "type"]
    return [secret for secret in secrets if secret]


def describe_error(error: Exception) -> str:
    """Explain why an event could not be sent, without repeating the text of the error."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"the server responded with status {response.status_code}"
    if isinstance(error, requests.Timeout):
        return "the server did not respond in time"
    for linked_error in list_linked_errors(error):
        if isinstance(linked_error, OSError) and linked_error.strerror:
            return linked_error.strerror
    return type(error).__name__


def _select_by_prefix(settings: Mapping[str, str], prefix: str) -> dict[str, Any]:
    """Return the settings whose names begin with the prefix. The prefix is removed from the names."""
    return {name.removeprefix(prefix): value for name, value in settings.items() if name.startswith(prefix)}


def _split_url(settings: Mapping[str, str]) -> SplitResult | None:
    """Return the parts of the transport's URL, or None if it is invalid, such as an incomplete IPv6 address."""
    try:
        return urlsplit(settings.get("transport.url", ""))
    except ValueError:
        return None


def _parse_timeout_seconds(timeout_ms: str) -> float:
    """Convert the setting, which is in milliseconds, to seconds. Raise ConfigurationError if it is not a number."""
    try:
        return int(timeout_ms) / 1000
    except (ValueError, OverflowError):
        raise ConfigurationError(
            f"spark.openlineage.transport.timeoutInMillis is '{timeout_ms}', which is not a number. Set it to "
            "milliseconds."
        ) from None


def _parse_token_fields(name_list: str) -> list[str]:
    """Parse a list in the listener's format: in brackets and separated by semicolons."""
    return [name.strip() for name in name_list.strip("[]").split(";")]
