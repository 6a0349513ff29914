"""Where a version of the program runs: program, arguments and environment instead of those of the run's start. Pure.

A version's code lies in a folder of its own. The folder in which the program runs stays the user's, so that relative
paths of data and results mean what they meant; what is looked up below the user's code is looked up in the copy.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from everstep.model.spec import Launch, RunSpec
from everstep.model.versions import Version


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    program: str
    args: tuple[str, ...]
    env: dict[str, str]  # whole
    moved: tuple[str, str] | None = None  # what is below the first folder is looked up below the second


def place(spec: RunSpec, version: Version | None, env: Mapping[str, str]) -> Placed:
    """Return what a rank runs. `env`: what all ranks of this node share, with the values of the version's variables."""
    if version is None:
        return Placed(program=spec.program, args=spec.args, env=dict(env))
    given = {**env, **version.env, "EVERSTEP_VERSION": version.id}
    args = spec.args if version.args is None else version.args
    if not version.code:
        return Placed(program=spec.program, args=args, env=given)
    if path := given.get("PYTHONPATH"):
        entries = (os.path.normpath(Path(spec.cwd) / entry) for entry in path.split(os.pathsep))
        given["PYTHONPATH"] = os.pathsep.join(moved(entry, version) for entry in entries)
    program = spec.program
    if spec.launch in (Launch.SCRIPT, Launch.RUN_PATH):
        program = moved(os.path.normpath(Path(spec.cwd) / program), version)
    return Placed(program=program, args=args, env=given, moved=(version.root, version.code))


def moved(path: str, version: Version) -> str:
    """Return the same path in the version's directory, if it lies below the directory that this stands for."""
    root = version.root.rstrip(os.sep)
    if path == root or path.startswith(root + os.sep):
        return version.code + path[len(root) :]
    return path
