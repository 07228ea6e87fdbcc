"""Pauses between failed token requests, with a fake clock and a fake endpoint."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import AuthenticationError, DisconnectedError, KafkaSinkError
from spark_kafka_sink.network.security import oidc
from spark_kafka_sink.network.security.oidc import OidcConfig, TokenSource


class SlowEndpoint:
    """A token endpoint that takes 10 seconds of a fake clock for each request."""

    def __init__(self, results: list[KafkaSinkError | dict[str, object]]) -> None:
        """`results`: for each request, the error or the content of the response."""
        self.clock_s = 0.0
        self.request_times_s: list[float] = []
        self._results = results

    def now_s(self) -> float:
        return self.clock_s

    def send_token_request(self, _config: OidcConfig, _unix_time_s: float) -> dict[str, object]:
        self.request_times_s.append(self.clock_s)
        self.clock_s += 10
        result = self._results.pop(0)
        if isinstance(result, KafkaSinkError):
            raise result
        return result


@pytest.mark.parametrize("error_type", [DisconnectedError, AuthenticationError])
def test_failed_request_is_repeated_only_after_as_much_time_as_it_took(
    monkeypatch: pytest.MonkeyPatch, error_type: type[KafkaSinkError]
) -> None:
    """Otherwise, an unresponsive endpoint would nearly always block the thread that sends records."""
    endpoint = SlowEndpoint([error_type("first"), error_type("second"), {"access_token": "t", "expires_in": 60}])
    monkeypatch.setattr(oidc, "_send_token_request", endpoint.send_token_request)
    tokens = TokenSource(OidcConfig("http://localhost/", "me", "s"), now_s=endpoint.now_s, unix_time_s=endpoint.now_s)
    for message, call_times_s in (("first", [0, 10, 15, 19]), ("second", [20, 30, 39])):
        errors = []
        for call_time_s in call_times_s:
            endpoint.clock_s = call_time_s
            with pytest.raises(error_type) as caught:
                tokens.get_token()
            errors.append(caught.value)
        assert [str(error) for error in errors] == [message] * len(call_times_s)
        assert len(set(map(id, errors))) == len(errors), "each caller gets an error of its own"
    endpoint.clock_s = 40
    assert tokens.get_token() == "t"
    assert endpoint.request_times_s == [0, 20, 40]
