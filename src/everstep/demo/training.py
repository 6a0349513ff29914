"""One real training under `everstep run`, started as a user would, and watched through what it leaves on disk.

Ends everything it started, whatever happens to the demo.
"""

import contextlib
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import everstep

STOP_TIMEOUT_S = 20.0


class Training:
    """Use as a context manager; `run_dir` holds the journal, `losses` grows with every step."""

    def __init__(self, directory: Path, *, num_ranks: int, num_steps: int) -> None:
        directory.mkdir(parents=True)
        self.run_dir = directory / "run"
        self.log = directory / "output.log"
        self._loss_log = directory / "losses"
        self._final = directory / "final"
        self._argv = [
            *(sys.executable, "-P", "-m", "everstep", "run"),
            *("--nproc-per-node", str(num_ranks), "--run-dir", str(self.run_dir)),
            *(str(example()), "--steps", str(num_steps)),
            *("--loss-log", str(self._loss_log), "--final", str(self._final)),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Training":
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        process = self._process
        assert process is not None
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
        if process.poll() is None:
            process.kill()
            process.wait()

    def exit_code(self) -> int | None:
        """None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def losses(self) -> list[str]:
        """Complete lines `step loss`, the loss as an exact hexadecimal float."""
        try:
            text = self._loss_log.read_text()
        except FileNotFoundError:
            return []
        return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def digest(self) -> str:
        """Return the digest of all trained parameters; empty if the training did not get there."""
        with contextlib.suppress(FileNotFoundError):
            return self._final.read_text().strip()
        return ""

    def last_output(self, num_lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-num_lines:])


def example() -> Path:
    """examples/train_gpt.py: inside the package when installed, beside `src` in a checkout."""
    package = Path(everstep.__file__).parent
    installed = package / "examples" / "train_gpt.py"
    return installed if installed.exists() else package.parents[1] / "examples" / "train_gpt.py"
