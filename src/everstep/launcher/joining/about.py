"""The description that a joining host gives of itself, and how its part in a run ends."""

import msgspec


class About(msgspec.Struct, frozen=True, kw_only=True):
    """This host's description of itself when it joins."""

    num_hosts: int | None = None
    nproc: int | None = None
    program: str = ""
    args: tuple[str, ...] = ()
    torch_version: str = ""
    cwd: str = ""
    rack: str = ""


class End(msgspec.Struct, frozen=True, kw_only=True):
    exit_code: int
    outcome: str
    why: str
    is_own: bool = False  # this host's end, and not the run's
    had_controller: bool = False  # as a successor
