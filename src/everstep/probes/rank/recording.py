"""Python stacks of a rank over some seconds: one py-spy that samples the rank from outside and never stops it.

py-spy counts time from its own start, which it does not report. It starts after we start it, and its newest event, at
the writing of its file, is older than that file: so its clock is known to what lies between, some milliseconds, more
where py-spy waits for a CPU.
"""

import contextlib
import math
import os
import re
import select
import subprocess
import time

import msgspec

RATE = 50
"""Samples per second; they cost from half a percent to some percent of a core, outside the rank."""

MAX_BYTES = 64 << 20
START_S = 20.0
END_S = 20.0
_BEGINS = b"Sampling process"
_SAMPLES = re.compile(rb"Samples: (\d{1,9})\b")


class StackEvent(msgspec.Struct, frozen=True):
    """An event of py-spy: a frame of a thread begins ("B") or ends ("E"). `ts`: microseconds."""

    name: str
    ph: str
    ts: int
    tid: int
    args: dict[str, object] = {}


class Recorded(msgspec.Struct, frozen=True):
    """Recorded events. `zero_at`: wall clock at the events' time 0, to `off_s` seconds. `rate`: samples per second;
    fewer than RATE where py-spy waited for a CPU, 0 if it did not say."""

    events: tuple[StackEvent, ...]
    zero_at: float
    off_s: float
    rate: float


class RecordingError(Exception):
    """There are no stacks. The text is the reason."""


class Recording:
    """A recording that starts at once. `end` returns its events; `kill` discards them."""

    def __init__(self, py_spy: str, pid: int, seconds: float, max_bytes: int = MAX_BYTES) -> None:
        """Start the recording. Raises RecordingError."""
        self._max_bytes = max_bytes
        self._file = os.memfd_create("everstep-stacks")  # a file would stay when this process is killed
        argv = [py_spy, "record", "--pid", str(pid), "--nonblocking", "--threads", "--idle", "--rate", str(RATE)]
        output = f"/proc/self/fd/{self._file}"
        argv += ["--duration", str(math.ceil(seconds)), "--format", "chrometrace", "--output", output]
        self._started_at = time.time()
        self._said = b""
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(self._file,),
            )
        except OSError as error:
            os.close(self._file)
            raise RecordingError(f"py-spy cannot be started: {error.strerror}") from None

    def await_begin(self) -> None:
        """Wait until it samples. Raises RecordingError."""
        limit = time.monotonic() + START_S
        while _BEGINS not in self._said:
            if not self._read(limit - time.monotonic()):
                self.kill()
                raise RecordingError(self._why(f"py-spy did not begin within {START_S:g} s"))

    def end(self) -> Recorded:
        """Wait for the end and return the events. Raises RecordingError."""
        limit = time.monotonic() + END_S
        try:
            while self._read(limit - time.monotonic()):
                pass
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.1, limit - time.monotonic()))
            return self._parsed()
        finally:
            self.kill()

    def kill(self) -> None:
        """End py-spy and drop what it wrote."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None and not self._process.stdout.closed:
            self._process.stdout.close()
            os.close(self._file)

    def _read(self, limit_s: float) -> bool:
        """Read more of its output; False: there is no more, or it took too long."""
        assert self._process.stdout is not None
        if limit_s <= 0 or not select.select([self._process.stdout], [], [], limit_s)[0]:
            return False
        part = os.read(self._process.stdout.fileno(), 4096)
        self._said = (self._said + part)[-65_536:]
        return bool(part)

    def _parsed(self) -> Recorded:
        found = os.fstat(self._file)
        if not found.st_size:
            raise RecordingError(self._why("py-spy wrote nothing"))
        data, written_at = os.pread(self._file, self._max_bytes + 1, 0), found.st_mtime
        if len(data) > self._max_bytes:
            raise RecordingError(f"py-spy wrote more than {self._max_bytes >> 20} MiB")
        return parse(data, self._started_at, written_at, self._samples())

    def _samples(self) -> int:
        said = _SAMPLES.search(self._said)
        return int(said[1]) if said else 0

    def _why(self, otherwise: str) -> str:
        lines = [line.strip() for line in self._said.decode("utf-8", "replace").splitlines() if line.strip()]
        errors = [line for line in lines if not line.startswith("py-spy>")]
        text = " ".join(errors[:4])[:300] or otherwise
        if "permi" in text.lower():
            text += " (run it as root or with CAP_SYS_PTRACE)"
        return text


def parse(data: bytes, started_at: float, written_at: float, samples: int = 0) -> Recorded:
    """Events from the file of a py-spy that was started and wrote at these times. Raises RecordingError."""
    try:
        events = msgspec.json.decode(data, type=list[StackEvent])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RecordingError(f"what py-spy wrote is damaged: {str(error)[:200]}") from None
    if not events:
        raise RecordingError("py-spy saw no stack")
    # A file's time is the kernel's last tick: it may lie before the start by some milliseconds.
    first, newest = (pick(event.ts for event in events) for pick in (min, max))
    latest = max(started_at, written_at - newest / 1e6)
    rate = samples / max(1e-6, newest - first) * 1e6
    return Recorded(tuple(events), (started_at + latest) / 2, (latest - started_at) / 2, rate)
