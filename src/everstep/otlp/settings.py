"""Whether, what and how often: OpenTelemetry's own environment variables, as every program reads them. Pure."""

from collections.abc import Mapping

METRICS, TRACES, LOGS = "metrics", "traces", "logs"
SIGNALS = (METRICS, TRACES, LOGS)
EVERY_S = 60.0
LEAST_S = 1.0
_PREFIX = "OTEL_EXPORTER_OTLP_"


def signals(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the signals that have an endpoint and are not switched off."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ()
    return tuple(signal for signal in SIGNALS if _is_wanted(environ, signal))


def why_not(environ: Mapping[str, str]) -> str:
    """Why what is wanted cannot be done; empty if it can."""
    for name in (f"{_PREFIX}PROTOCOL", *(f"{_PREFIX}{signal.upper()}_PROTOCOL" for signal in SIGNALS)):
        value = environ.get(name, "").strip()
        if value not in ("", "http/protobuf"):
            return f"{name}={value} is not supported: use http/protobuf"
    return ""


def every_s(environ: Mapping[str, str]) -> float:
    """Between two exports of metrics; OTEL_METRIC_EXPORT_INTERVAL is in milliseconds."""
    try:
        return max(LEAST_S, float(environ["OTEL_METRIC_EXPORT_INTERVAL"]) / 1000)
    except (KeyError, ValueError):
        return EVERY_S


def _is_wanted(environ: Mapping[str, str], signal: str) -> bool:
    names = (f"{_PREFIX}ENDPOINT", f"{_PREFIX}{signal.upper()}_ENDPOINT")
    chosen = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp").strip().lower()
    return any(environ.get(name, "").strip() for name in names) and "otlp" in chosen.split(",")
