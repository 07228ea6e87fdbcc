"""Metrics exporters for Prometheus and OpenTelemetry. Each requires an extra that installs the client library."""
