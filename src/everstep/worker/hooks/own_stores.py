"""Groups that the program makes below its rank: `mp.spawn`, `multiprocessing`, Ray's workers, another MASTER_PORT.

Their processes inherit torchrun's TORCHELASTIC_USE_AGENT_STORE, with which torch only ever connects. Where the program
has chosen another port, nothing listens there, and under torchrun all of them wait until they time out. Here rank 0 of
such a group opens the store, as it does under plain `python`. What an agent of torch's below the rank started
(`elastic_launch`) has an error file of that agent's, and is left alone.

Imported in processes that have nothing else of ours, so it imports little.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys

from everstep.worker.parking.finder import OnImport

TYPE_CHECKING = False  # `typing` would be imported before the program imports it
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType
    from typing import Any

    Given = Callable[[], Mapping[str, str]]
    """The environment that everstep gave to the rank."""

STORES = "torch.distributed.rendezvous"
SPAWNING = "multiprocessing.spawn"
RAY = "ray._private.worker"
_VARIABLE = "TORCHELASTIC_USE_AGENT_STORE"
_ERROR_FILE, _PORT = "TORCHELASTIC_ERROR_FILE", "MASTER_PORT"
_PROBE_S = 1.0

_IN_A_CHILD = """
try:
    import sys
    sys.path.insert(0, {root!r})
    try:
        from everstep.worker.hooks import own_stores
    finally:
        sys.path.remove({root!r})
    own_stores.hook_all({given!r})
except Exception as error:  # the process is the program's: it begins without us rather than not at all
    sys.stderr.write(f"everstep: a process of this rank is not looked after: {{type(error).__name__}}: {{error}}\\n")
"""


def hook_all(given: Mapping[str, str]) -> None:
    """In a process below a rank: now for what is loaded, and on import for what is not."""
    finder = OnImport()
    finder.wait_for(STORES, functools.partial(hook_stores, lambda: given))
    finder.wait_for(SPAWNING, functools.partial(hook_spawning, lambda: given))


def hook_stores(given: Given, module: ModuleType) -> None:
    """`module`: torch.distributed.rendezvous."""
    original = module._create_c10d_store

    @functools.wraps(original)
    def _create_c10d_store(hostname: str, port: int, rank: int, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if rank != 0 or not is_of_the_program(port, os.environ, given()) or _is_open(hostname, port):
            return original(hostname, port, rank, *args, **kwargs)
        with _without_agent_store():
            return original(hostname, port, rank, *args, **kwargs)

    module._create_c10d_store = _create_c10d_store  # type: ignore[attr-defined]


def hook_ray(module: ModuleType) -> None:
    """`module`: ray._private.worker. What `ray.init` starts here hands its environment to the workers."""
    original = module.init

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as ray has it
        with _without_agent_store():
            return original(*args, **kwargs)

    for name in (RAY, "ray"):  # the second one has taken the function over, if torch came after Ray
        if getattr(sys.modules.get(name), "init", None) is original:
            sys.modules[name].init = init  # type: ignore[attr-defined]


@contextlib.contextmanager
def _without_agent_store() -> Iterator[None]:
    inherited = os.environ.pop(_VARIABLE, None)
    try:
        yield
    finally:
        if inherited is not None:
            os.environ[_VARIABLE] = inherited


def hook_spawning(given: Given, module: ModuleType) -> None:
    """`module`: multiprocessing.spawn. Its processes are hooked when they read how to begin."""
    original = module.get_preparation_data

    @functools.wraps(original)
    def get_preparation_data(name: str) -> dict[str, Any]:
        data: dict[str, Any] = original(name)
        data["everstep"] = _Beginning({name: given().get(name, "") for name in (_PORT, _ERROR_FILE)})
        return data

    module.get_preparation_data = get_preparation_data  # type: ignore[attr-defined]


class _Beginning:
    """Runs a few lines where it is unpickled: that process may be of another Python, without our modules."""

    def __init__(self, given: dict[str, str]) -> None:
        self._given = given

    def __reduce__(self) -> tuple[object, ...]:
        root = os.path.abspath(f"{__file__}/../../../..")
        return exec, (_IN_A_CHILD.format(root=root, given=self._given), {})


def is_of_the_program(port: int, environ: Mapping[str, str], given: Mapping[str, str]) -> bool:
    """Whether the program chose the port itself, and no agent of torch's below the rank did."""
    is_inherited = environ.get(_VARIABLE) == "True" and environ.get(_ERROR_FILE) == given.get(_ERROR_FILE)
    return is_inherited and given.get(_PORT, "") not in ("", str(port))


def _is_open(hostname: str, port: int) -> bool:
    """A store that the program, or someone for it, has opened."""
    try:
        socket.create_connection((hostname, port), timeout=_PROBE_S).close()
    except OSError:
        return False
    return True
