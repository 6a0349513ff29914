"""A run's metrics, incidents and recoveries for OpenTelemetry: OTLP over HTTP, in a process of its own.

Off unless an `OTEL_EXPORTER_OTLP_*ENDPOINT` is set. By the official SDK (`pip install 'everstep[otlp]'`).
"""
