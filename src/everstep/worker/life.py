"""What ties a worker process to its agent, and makes a forked one as clean as a fresh one.

A worker must never outlive its agent: PR_SET_PDEATHSIG, set relative to the agent itself and checked afterwards. It
leads its own session, so that the agent can end whatever it started along with it.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping

_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61
_ADOPTION_TIMEOUT_S = 10.0
_BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")  # in OpenBLAS's order
_BLAS_SETTERS = tuple(
    f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("", "scipy_") for suffix in ("", "64_", "_64")
)
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> bool:
    """End with `parent`; False if it is gone already or is not the parent."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0) != 0:
        return False
    return os.getppid() == parent


def allow_look_of(agent: int) -> None:
    """Let the agent's own children (py-spy) read this process's stack where Yama forbids it to all but parents. Where
    there is no Yama the call fails, and is not needed."""
    _libc.prctl(_PR_SET_PTRACER, agent, 0, 0, 0)


def await_adoption(agent: int) -> bool:
    """Wait until the process between us and the agent has ended, so that the agent is the parent."""
    deadline = time.monotonic() + _ADOPTION_TIMEOUT_S
    while os.getppid() != agent:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0005)
    return True


def reset_signals() -> None:
    """Python's defaults, as in a program that was just started; nothing blocked."""
    for signum in signal.valid_signals():
        if signum in (signal.SIGKILL, signal.SIGSTOP):
            continue
        if signal.getsignal(signum) not in (signal.SIG_DFL, None):
            signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def reseed() -> None:
    """Give this process its own entropy where a fork copies it. Python's `random` does so by itself; torch's default
    seed is a constant in every process; NumPy's global generator is drawn from the system once, when it is imported.
    """
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def restore_blas_threads(env: Mapping[str, str]) -> None:
    """Give NumPy's OpenBLAS the threads that it would have made on import. The template loads it with one, because a
    process with threads must not be forked."""
    wanted = next((env[name] for name in _BLAS_VARIABLES if name in env), "")
    num_threads = int(wanted) if wanted.isdigit() and int(wanted) > 0 else len(os.sched_getaffinity(0))
    if num_threads == 1 or "numpy" not in sys.modules:
        return
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        libraries = {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "openblas" in line}
    for path in libraries:
        library = ctypes.CDLL(path)
        for name in _BLAS_SETTERS:
            setter = getattr(library, name, None)
            if setter is not None:
                setter(ctypes.c_int(num_threads))


def take_streams(fds: list[int]) -> None:
    """The first three become 0, 1 and 2 and leave the list. Raises IndexError where they did not come."""
    for number in range(3):
        given = fds.pop(0)
        os.dup2(given, number, inheritable=True)
        os.close(given)


def redirect(path: str, fd: int) -> None:
    """Let `fd` append to the file at `path`, which is created."""
    target = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.dup2(target, fd, inheritable=True)
    os.close(target)


def make_output_live() -> None:
    """Every line reaches the file when it is complete, also if the process is killed after it."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
