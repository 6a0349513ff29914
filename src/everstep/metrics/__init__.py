"""What Prometheus and OpenTelemetry are told of a run: one table of names, one set of samples (docs/metrics.md)."""
