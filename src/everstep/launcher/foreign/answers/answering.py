"""Shared parts of the programs of this directory."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from everstep.launcher.foreign.line import Line


class Found(BaseException):
    """The launcher was about to start something. No launcher catches it: it is not an Exception."""

    def __init__(self, line: Line) -> None:
        super().__init__(line)
        self.line = line


class Stand:
    """Stands in a module's place: names that it is given, and the module's own for all others."""

    def __init__(self, module: object, **names: object) -> None:
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._module, name)


def refuse(launcher: str, why: str) -> NoReturn:
    raise Found(Line(launcher=launcher, refused=why))


def answer(launcher: str, find: Callable[[Sequence[str]], None]) -> None:
    """Run `find` with the command line's arguments, and write the Line that it finds."""
    fd, args = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(fd, False)
    try:
        find(args)
        line = Line(launcher=launcher, refused="it ended without starting anything")
    except Found as found:
        line = found.line
    except ImportError as error:
        line = Line(launcher=launcher, refused=f"{sys.executable} cannot import it: {error}")
    except Exception as error:
        line = Line(launcher=launcher, refused=f"{type(error).__name__}: {error}")
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.encode(line))


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, Any]:
    """`environ` and `removed` of a Line."""
    return {
        "environ": {name: value for name, value in after.items() if before.get(name) != value},
        "removed": tuple(name for name in before if name not in after),
    }


def kind_of(command: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Split a command for subprocess: return torchrun's flag for the kind of program, then program and arguments."""
    if command[0] != sys.executable:
        return ("--no-python",), list(command)
    rest = [*command[1:]]
    if rest[0] == "-u":
        del rest[0]
    return (("--module",), rest[1:]) if rest[0] == "-m" else ((), rest)
