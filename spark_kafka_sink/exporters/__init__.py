"""Metrics exporters for Prometheus and OpenTelemetry. Each requires an extra, which installs the library it uses."""
