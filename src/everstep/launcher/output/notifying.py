"""The processes that notify people, and OpenTelemetry, about a run. They are started and left alone: nothing here waits
for them.

Their stdin is a pipe that only the launcher holds: when that ends, they send what is left within seconds and end.
"""

import contextlib
import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger("everstep.launcher")


def start_notifier(config: str, run_dir: Path) -> subprocess.Popen[bytes] | None:
    """None: no notices are configured, or it cannot be started, which is no reason not to train."""
    return _start("notices", run_dir, "--config", config) if config else None


def start_exporter(run_dir: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
    """To where `OTEL_EXPORTER_OTLP_ENDPOINT` says; None: nowhere, or the SDK is not installed."""
    if not any(name.startswith("OTEL_EXPORTER_OTLP_") and name.endswith("ENDPOINT") for name in environ):
        return None
    if importlib.util.find_spec("opentelemetry") is None:
        log.info("OTEL_EXPORTER_OTLP_ENDPOINT is set; to export there: pip install 'everstep[otlp]'")
        return None
    return _start("otlp", run_dir)


def _start(name: str, run_dir: Path, *more: str) -> subprocess.Popen[bytes] | None:
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(run_dir / f"{name}.log", flags, 0o600)
        with os.fdopen(fd, "ab") as told:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", f"everstep.{name}", "--run-dir", str(run_dir), *more],
                stdin=subprocess.PIPE,
                stdout=told,
                stderr=told,
                start_new_session=True,
            )
    except OSError as error:
        log.warning("%s cannot be sent: %s", name, error)
        return None


def end_notifier(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None and process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.returncode = process.poll() or 0  # it ends by itself, after us
