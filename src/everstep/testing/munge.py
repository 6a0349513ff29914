"""A munged for tests, with a key and a socket of its own. Needs Debian's munge."""

import os
import secrets
import shutil
import subprocess
import time
from pathlib import Path

SOCKET_NAME = "socket"
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"
_UP_S = 30.0


def is_installed() -> bool:
    return shutil.which("munged", path=PATH) is not None


class Munged:
    """Up when the constructor returns; raises TimeoutError."""

    def __init__(self, folder: Path) -> None:
        """`folder`: is there already, and others may look into it."""
        self.socket = folder / SOCKET_NAME
        key = folder / "key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        files = {"key-file": key, "socket": self.socket, "pid-file": folder / "pid", "seed-file": folder / "seed"}
        options = [f"--{name}={path}" for name, path in files.items()]
        command = ["munged", "--foreground", "--force", "--num-threads=2", f"--log-file={folder / 'log'}", *options]
        with (folder / "out").open("ab") as log:
            environ = {**os.environ, "PATH": PATH}
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environ, start_new_session=True)
        ends_at = time.monotonic() + _UP_S
        while not self.socket.exists():
            if time.monotonic() > ends_at:
                self.close()
                raise TimeoutError(f"munged does not come up: {(folder / 'out').read_text()[-1000:]}")
            time.sleep(0.02)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
