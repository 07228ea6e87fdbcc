"""HTTP transport of the schema registry client: URLs, credentials, retries and errors.

A request is sent to each URL in turn, until one responds. Errors that may be temporary are retried, which is safe
because all requests are idempotent. The timeout `schema.registry.request.timeout.ms` covers all attempts and backoffs.

Text from the registry appears in errors and logs on one line, with bounded length, and without the credentials that
were sent.
"""

from __future__ import annotations

import base64
import http.client
import logging
import ssl
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple

from spark_kafka_sink.diagnostics.deferred_log import warn_once
from spark_kafka_sink.diagnostics.text import format_count, mask_secrets, sanitize
from spark_kafka_sink.errors import (
    PLAIN_SPELLING,
    ConfigurationError,
    OptionProblem,
    OptionSpelling,
    SchemaRegistryError,
)
from spark_kafka_sink.network.http_client import (
    HttpResponse,
    HttpResponseTooLong,
    describe_http_error,
    find_url_error,
    is_https,
    is_loopback,
    is_redirect,
    open_connection,
    parse_json_object,
    send_request,
)
from spark_kafka_sink.network.security.tls_context import TlsConfig, build_client_ssl_context
from spark_kafka_sink.network.security.tls_errors import describe_certificate_error

MAX_RESPONSE_BYTES = 16 << 20
"""Maximum size of a response. A larger one is an error, so that a wrong URL cannot exhaust the driver's memory."""
MAX_RETRIES = 3
"""Maximum number of attempts after the first one. Each attempt tries all URLs."""
REGISTRY_PREFIX = "schema.registry."
"""Prefix of the registry options that are named as in Confluent's serializers."""
_BACKOFF_S = 0.1
"""Backoff before the first retry. It doubles with each further retry."""
RETRIABLE_STATUSES = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
"""Statuses that may be temporary."""
_NOT_FOUND_ERRORS = (40401, 40402, 40403)
"""The registry's error codes for an unknown subject, version or schema. Other servers respond with status 404 alone."""
_WRONG_PATH_STATUSES = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)
"""Statuses with which servers other than a registry respond if the URL has a wrong path."""
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_TIMEOUT_OPTION = "schema.registry.request.timeout.ms"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RegistryConfig:
    """The connection to a schema registry. Hashable, because clients are cached by configuration.

    The constructor logs a warning if credentials would be sent unencrypted to another machine.
    """

    urls: tuple[str, ...]
    """The URLs of the same registry, in the order in which they are tried."""
    user_info: str | None = field(default=None, repr=False)
    """`user:password`, for basic authentication. Ignored if there is a token."""
    token: str | None = field(default=None, repr=False)
    tls: TlsConfig = field(default_factory=TlsConfig)
    timeout_ms: int = 30_000
    """The timeout of a request, including its retries."""
    normalize: bool = False
    """Whether the registry normalizes schemas before it compares them."""
    option_spelling: OptionSpelling = PLAIN_SPELLING
    """The way the user writes option names, for errors and logs."""

    def spell(self, option: str) -> str:
        """Return the name of an option as the user writes it."""
        return self.option_spelling.spell(option)

    def __post_init__(self) -> None:
        has_credentials = bool(self.user_info or self.token)
        # Requests to a loopback address do not leave this machine.
        is_exposed = any(not (is_https(url) or is_loopback(url)) for url in self.urls)
        if has_credentials and is_exposed:
            url_option = self.spell("schema.registry.url")
            warn_once(_log, f"{url_option} is http, which sends the credentials unencrypted. Use https.")


class _Authorization(NamedTuple):
    """The Authorization header, and the secrets that it contains."""

    header: str | None
    """The value of the Authorization header, or None if there are no credentials."""
    secrets: tuple[str, ...]
    """Strings to mask in errors and logs."""


class _Request(NamedTuple):
    """A request that can be sent to any of the URLs."""

    method: str
    path: str
    """The path and the query string."""
    body: bytes | None
    retriable_statuses: Sequence[int]
    """Response statuses that may be temporary. After such a response, the request is sent to the next URL."""


class _UrlResponse(NamedTuple):
    """A response, and the complete URL that it came from."""

    url: str
    response: HttpResponse


class _FailedRequest(NamedTuple):
    """A failed request to one URL, which may succeed later or with another URL."""

    message: str
    """The cause; also the remedy if a retry cannot succeed."""
    requested_backoff_s: float | None = 0.0
    """Minimum delay before a retry, as requested by the registry (Retry-After); None if a retry cannot succeed."""
    has_responded: bool = False
    """Whether the server has responded, with a status that may be temporary."""


class RegistryTransport:
    """Sends requests to a schema registry. Not thread-safe.

    The constructor raises ConfigurationError if the TLS options are invalid.

    `now_s`, `sleep`: the clock in seconds and the function that waits; tests replace them.
    """

    def __init__(self, config: RegistryConfig, *, now_s: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._config = config
        self._now_s = now_s
        self._sleep = sleep
        self._ssl_context: ssl.SSLContext | None = None
        if any(is_https(url) for url in config.urls):
            try:
                self._ssl_context = build_client_ssl_context(config.tls)
            except ConfigurationError as error:
                raise error.with_prefix(REGISTRY_PREFIX) from error
        self._headers = {"Accept": f"{_MEDIA_TYPE}, application/json", "Content-Type": _MEDIA_TYPE}
        authorization = _build_authorization(config)
        if authorization.header is not None:
            self._headers["Authorization"] = authorization.header
        self._secrets = [secret for secret in authorization.secrets if secret]

    def sanitize(self, text: str, max_characters: int = 1_000) -> str:
        """Return text from the registry in a form that is safe in errors and logs."""
        return sanitize(mask_secrets(text, self._secrets), max_characters)

    def request(
        self,
        method: str,
        path: str,
        *,
        subject: str,
        body: bytes | None = None,
        not_found_problem: str | None = None,
        retriable_statuses: Sequence[int] = RETRIABLE_STATUSES,
    ) -> Mapping[str, Any]:
        """Send a request, with retries, and return the JSON object of the response.

        Each attempt tries every URL in turn, and divides the remaining time evenly among the URLs still to be tried.
        Raise SchemaRegistryError if the registry rejects the request, or if all attempts fail.

        `path`: the path and the query string.
        `subject`: the subject that error messages name.
        `body`: a schema as JSON; None to fetch the subject's latest version.
        `not_found_problem`: the problem of the subject if the registry does not find it, or its version or schema, such
        as "has no version"; None if registering the schema would not help.
        `retriable_statuses`: statuses that may be temporary, so that the request is sent again.
        """
        request = _Request(method, path, body, retriable_statuses)
        deadline_s = self._now_s() + self._config.timeout_ms / 1000
        attempt = 0
        while True:
            attempt += 1
            outcome = self._try_urls(request, deadline_s)
            if isinstance(outcome, _UrlResponse):
                if outcome.response.status == HTTPStatus.OK:
                    return parse_json_object(outcome.response.body)
                raise SchemaRegistryError(self._describe_rejection(outcome, path, subject, not_found_problem))
            backoff_s = _compute_backoff_s(attempt, outcome)
            remaining_s = deadline_s - self._now_s()
            if backoff_s is None or backoff_s >= remaining_s:
                raise self._build_final_failure_error(attempt, outcome, max(0.0, remaining_s))
            _log.warning(
                "The request to the schema registry failed (%s). Retrying in %.1f s.",
                _join_messages(outcome),
                backoff_s,
            )
            self._sleep(backoff_s)

    def _build_final_failure_error(
        self, attempt_count: int, failures: Sequence[_FailedRequest], remaining_s: float
    ) -> SchemaRegistryError:
        """Build the error of a request whose last attempt has failed.

        `failures`: the failed requests of the last attempt.
        `remaining_s`: the time that remains until the timeout expires.
        """
        message = _join_messages(failures)
        requested_backoffs_s = _collect_requested_backoffs_s(failures)
        longest_backoff_s = max(requested_backoffs_s, default=0.0)
        if longest_backoff_s > remaining_s:
            message += f"; the requested backoff is {longest_backoff_s:.0f} s, but only {remaining_s:.1f} s remain"
        text = (
            f"The request to the schema registry failed after {format_count(attempt_count, 'attempt')}: "
            f"{message.removesuffix('.')}."
        )
        retriable_failures = [failure for failure in failures if failure.requested_backoff_s is not None]
        if retriable_failures:  # the messages of other failures contain their remedies
            remedy = f"Check {self._config.spell('schema.registry.url')}, and that the driver can reach the registry."
            if all(failure.has_responded for failure in retriable_failures):
                remedy = "Check the state of the schema registry, and try again later."
            text += (
                f" The timeout is {self._config.timeout_ms} ms for all attempts "
                f"({self._config.spell(_TIMEOUT_OPTION)}). {remedy}"
            )
        return SchemaRegistryError(text)

    def _try_urls(self, request: _Request, deadline_s: float) -> _UrlResponse | list[_FailedRequest]:
        """Send a request to each URL in turn, until a response has a status that is not retriable.

        Return this response, which may be a success or a rejection. If there is none, return one failure for each URL.
        """
        failures: list[_FailedRequest] = []
        for index, url in enumerate(self._config.urls):
            untried_count = len(self._config.urls) - index
            timeout_s = (deadline_s - self._now_s()) / untried_count
            outcome = self._try_request(request, url, timeout_s)
            if isinstance(outcome, _UrlResponse):
                return outcome
            failures.append(outcome)
        return failures

    def _try_request(self, request: _Request, url: str, timeout_s: float) -> _UrlResponse | _FailedRequest:
        """Send a request to one URL. Return a _FailedRequest if the request may succeed later or with another URL."""
        full_url, deadline_s = url.rstrip("/") + request.path, self._now_s() + timeout_s
        try:
            connection = open_connection(full_url, self._ssl_context, timeout_s)
            response = send_request(
                connection,
                request.method,
                full_url,
                self._headers,
                request.body,
                timeout_s=max(0.001, deadline_s - self._now_s()),
                max_bytes=MAX_RESPONSE_BYTES,
            )
        # The URL would respond in the same way again, but another one may not.
        except HttpResponseTooLong as error:
            message = f"{url}: {error}: check the path of {self._config.spell('schema.registry.url')}"
            return _FailedRequest(message, requested_backoff_s=None)
        except ssl.SSLCertVerificationError as error:
            return _FailedRequest(f"{url}: {self._describe_certificate_error(error, url)}", requested_backoff_s=None)
        except (OSError, http.client.HTTPException) as error:
            return _FailedRequest(f"{url}: {describe_http_error(error)}")
        if response.status not in request.retriable_statuses:
            return _UrlResponse(full_url, response)
        message = self._sanitize_message(parse_json_object(response.body)).removesuffix(".")
        return _FailedRequest(
            f"{url}: status {response.status} {message}".rstrip(),
            _parse_retry_after_s(response.retry_after),
            has_responded=True,
        )

    def _describe_rejection(
        self, url_response: _UrlResponse, path: str, subject: str, not_found_problem: str | None
    ) -> str:
        """Explain why the registry rejected a request that is not retried, and how to fix it.

        `path`, `not_found_problem`: as in `request`.
        """
        response = url_response.response
        status, body = response.status, parse_json_object(response.body)
        prefix = f"The schema registry rejected the request for subject '{subject}' (status {status})"
        message = self._sanitize_message(body)
        reason = message.removesuffix(".")
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            details = f": {reason}" if reason else ""
            return f"{prefix}{details}. {self._describe_credentials_remedy()}"
        is_not_found_error = body.get("error_code") in _NOT_FOUND_ERRORS
        if is_not_found_error and not_found_problem is not None:
            return (
                f"Subject '{subject}' {not_found_problem} in the schema registry. Register the schema, or set "
                f"{self._config.spell('schemaSource')} to 'register'."
            )
        if status == HTTPStatus.CONFLICT:
            return (
                f"The schema is incompatible with earlier versions of subject '{subject}'. Change the columns or the "
                f"schema to satisfy the compatibility level of the subject, or change that level. {message}"
            ).rstrip()
        is_other_server = is_redirect(status) or (status == HTTPStatus.NOT_FOUND and not is_not_found_error)
        if is_other_server or not message:
            details = f": {reason}" if reason else ", which is not the response of a schema registry"
            url = self.sanitize(url_response.url)
            return f"{url} responded with status {status}{details}. {self._describe_server_remedy(url_response, path)}"
        return f"{prefix}: {message}"

    def _describe_server_remedy(self, url_response: _UrlResponse, path: str) -> str:
        """Return the remedy for a response that does not come from a schema registry but, for example, from a proxy."""
        status = url_response.response.status
        url_option = self._config.spell("schema.registry.url")
        if is_redirect(status):
            return f"Redirects are not followed. {self._describe_redirect_remedy(url_response, path)}"
        if status in _WRONG_PATH_STATUSES:
            return f"Check the path of {url_option}."
        return "Check the log of the server or proxy at this URL."

    def _describe_redirect_remedy(self, url_response: _UrlResponse, path: str) -> str:
        """Return the remedy for a redirect, with the registry's URL if the target ends with the path of the request."""
        url_option = self._config.spell("schema.registry.url")
        target = _find_redirect_target(url_response)
        path = path.partition("?")[0]
        if target is not None and target.endswith(path):
            return f"Set {url_option} to {self.sanitize(target.removesuffix(path))}."
        target_text = "" if target is None else f"The registry redirects to {self.sanitize(target)}. "
        return f"{target_text}Set {url_option} to the URL of the schema registry, without {self.sanitize(path)}."

    def _describe_credentials_remedy(self) -> str:
        """Return the remedy for a request that was rejected because of its credentials."""
        token_option = self._config.spell("schema.registry.bearer.auth.token")
        user_info_option = self._config.spell("schema.registry.basic.auth.user.info")
        if self._config.token is not None:
            return f"Check the token in {token_option} and the permissions of its owner."
        if self._config.user_info is not None:
            return f"Check the credentials in {user_info_option} and their permissions."
        if self._config.tls.keystore is not None:
            return (
                f"The request had only the client certificate as credentials. Check the certificate's permissions, or "
                f"set {user_info_option} or {token_option}."
            )
        return f"The request had no credentials. Set {user_info_option} or {token_option}."

    def _describe_certificate_error(self, error: ssl.SSLCertVerificationError, url: str) -> str:
        """Describe why the registry's certificate was not accepted, and what to do about it."""
        tls_option = f"{REGISTRY_PREFIX}ssl."
        truststore_options = (f"{tls_option}truststore.location", f"{tls_option}truststore.certificates")
        hostname_option = self._config.spell(f"{tls_option}endpoint.identification.algorithm")
        return describe_certificate_error(
            error,
            urllib.parse.urlsplit(url).hostname or "",
            server="schema registry",
            truststore=" or ".join(map(self._config.spell, truststore_options)),
            hostname_remedy=(
                f"correct the host in {self._config.spell('schema.registry.url')}, or set {hostname_option} to an "
                "empty value to disable the check"
            ),
        )

    def _sanitize_message(self, body: Mapping[str, Any]) -> str:
        message = body.get("message")
        return self.sanitize(message) if isinstance(message, str) else ""


def _build_authorization(config: RegistryConfig) -> _Authorization:
    """Build the Authorization header from the credentials. A token takes precedence over user and password."""
    if config.token is not None:
        return _Authorization(f"Bearer {config.token}", (config.token,))
    if config.user_info is not None:
        _, _, password = config.user_info.partition(":")
        credentials = base64.b64encode(config.user_info.encode()).decode()
        return _Authorization(f"Basic {credentials}", (config.user_info, password, credentials))
    return _Authorization(None, ())


def _find_redirect_target(url_response: _UrlResponse) -> str | None:
    """Return the URL to which a response redirects, without its user name, password and query.

    Return None if there is no such URL, if it differs from the request's URL only in the query, or if it uses http
    instead of https, because it would receive the credentials unencrypted.
    """
    request_url = url_response.url.partition("?")[0]
    try:
        parts = urllib.parse.urlsplit(urllib.parse.urljoin(request_url, url_response.response.location))
    except ValueError:
        return None
    target = urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    if target == request_url or find_url_error(target) is not None or (is_https(request_url) and not is_https(target)):
        return None
    return target


def _compute_backoff_s(attempt: int, failures: Sequence[_FailedRequest]) -> float | None:
    """Return the delay before the next attempt, or None if there must be no further attempt.

    `attempt`: the number of the attempt that has failed, counted from 1.
    `failures`: the failure of each URL in this attempt.
    """
    requested_backoffs_s = _collect_requested_backoffs_s(failures)
    if attempt > MAX_RETRIES or not requested_backoffs_s:
        return None
    # The next attempt tries all URLs, so it has to wait for the longest requested backoff.
    default_backoff_s: float = _BACKOFF_S * 2 ** (attempt - 1)
    return max(default_backoff_s, *requested_backoffs_s)


def _collect_requested_backoffs_s(failures: Sequence[_FailedRequest]) -> list[float]:
    """Return the backoff that the registry has requested for each failed request that can be retried."""
    return [failure.requested_backoff_s for failure in failures if failure.requested_backoff_s is not None]


def _join_messages(failures: Sequence[_FailedRequest]) -> str:
    return "; ".join(failure.message for failure in failures)


def parse_registry_urls(url_list: str) -> tuple[str, ...]:
    """Parse comma-separated URLs. Raise ConfigurationError if a URL is invalid or if there is none.

    The error's text contains no URL, because a URL may hold a password.
    """
    urls = tuple(part.strip() for part in url_list.split(",") if part.strip())
    for url in urls:
        problem = find_url_error(url) or ("must have no query ('?...') in it" if "?" in url else None)
        if problem is not None:
            has_password = "password" in problem
            template = "{problem}; set {schema.registry.basic.auth.user.info}." if has_password else "{problem}."
            raise ConfigurationError(OptionProblem("schema.registry.url", template, {"problem": problem}))
    if not urls:
        raise ConfigurationError(
            OptionProblem("schema.registry.url", "is not set, but formats that end in '-confluent' require it.")
        )
    return urls


def _parse_retry_after_s(retry_after: str | None) -> float:
    """Return the delay in a Retry-After header, or 0 if the header is missing or contains a date."""
    return float(retry_after) if retry_after and retry_after.isascii() and retry_after.isdecimal() else 0.0
