"""OpenTelemetry spans of requests and their rounds, as OTLP/HTTP JSON."""
