"""The metrics of a run for Prometheus and OpenTelemetry: one table of names, one set of samples (docs/metrics.md)."""
