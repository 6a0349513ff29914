"""The process that reads a folder of foreign files: `python -P -m everstep.evidence.child`, started by `apart`.

It has its own limits of memory and time, so that no file costs more than itself. Lines on its standard output: what it
reads now, and at the end what it found.
"""

import argparse
import gc
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from everstep.analyzer.hangs.combine import diagnose
from everstep.analyzer.overall import overall
from everstep.analyzer.reading.pickled import UnreadableError
from everstep.analyzer.slowness.shares import weigh
from everstep.errors import ConfigError
from everstep.evidence import inventory
from everstep.evidence.apart import LEAST_MEMORY, LENGTH, Asked, Begun, Broken, Found, Line, Refused, Weighed
from everstep.evidence.contents import Folder
from everstep.evidence.folder import read_folder
from everstep.evidence.tables import is_table, read_tables, traces_in
from everstep.evidence.watched import TooLongError, Watch, say, timed
from everstep.linux.parent import die_with_parent
from everstep.model.text import without_surrogates
from everstep.version import __version__

TRACE_CPU_S = 300.0
"""For a trace of all ranks, which may be large."""

TRACE_MEMORY = 6 << 30
"""Address space while a trace is read, pyarrow's libraries included, however much of it is free: 20 million rows need
half of it."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="everstep.evidence.child", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--parent", type=int, metavar="PID", help="process that this one dies with")
    given = parser.parse_args()
    if given.parent and not die_with_parent(given.parent):
        return 1
    asked = msgspec.json.decode(sys.stdin.buffer.readline(), type=Asked)
    _limit_memory(asked.memory_bytes or LEAST_MEMORY)
    gc.disable()  # what is read has no circles, and millions of values would be looked through for them
    answers = os.dup(1)
    os.dup2(2, 1)  # what anything else prints is no answer

    def tell(line: Line) -> None:
        content = _encoded(line)
        data = memoryview(LENGTH.pack(len(content)) + content)
        while data:
            data = data[os.write(answers, data) :]

    tell(_answer(asked, lambda path, cpu_s: tell(Begun(path=path, cpu_s=cpu_s))))
    return 0


def _answer(asked: Asked, tell: Callable[[str, float], None]) -> Line:
    root = Path(os.fsdecode(bytes.fromhex(asked.root)))
    watch = timed(asked.cpu_s, lambda path: tell(path, asked.cpu_s))
    skip = {os.fsdecode(bytes.fromhex(path)): why for path, why in asked.skip.items()}
    if asked.stages is not None and (traces := _traces(root)):
        _limit_memory(min(asked.memory_bytes or LEAST_MEMORY, TRACE_MEMORY))
        return _weighed(root, traces, asked.stages, skip, timed(TRACE_CPU_S, lambda path: tell(path, TRACE_CPU_S)))
    try:
        folder = read_folder(root, asked.now, watch, skip, num_ahead=None)
    except ConfigError as error:
        return Refused(why=str(error))
    try:
        with watch(""):
            return _found(asked, folder)
    except (Exception, TooLongError) as error:
        return Broken(why=f"the diagnosis {say(error)}")


def _traces(path: Path) -> list[Path]:
    try:
        if path.is_file():
            return [path] if is_table(path) else []
        return traces_in(path)
    except (OSError, UnreadableError):
        return []  # the reader of directories says what is wrong


def _weighed(root: Path, traces: list[Path], stages: int, skip: dict[str, str], watch: Watch) -> Line:
    why = skip.get(root.name, "")
    try:
        if not why:
            with watch(root.name):
                table = read_tables(traces, stages)
                return Weighed(shares=weigh(table), table=table)
    except (Exception, TooLongError) as error:
        why = say(error)
    return Refused(why=f"{root}: cannot be read as a trace of operations: {why}")


def _found(asked: Asked, folder: Folder) -> Found:
    if asked.world_size is not None:
        case = msgspec.structs.replace(folder.case, world=tuple(range(asked.world_size)), usual_s=asked.usual_s)
        folder = msgspec.structs.replace(folder, case=case)
    case, points = folder.case, folder.points
    diagnosis = overall(case, points, folder.known) if asked.with_numbers else diagnose(case)
    wanted = inventory.collect(folder.case, diagnosis.verdict, folder.known)
    folder = msgspec.structs.replace(folder, collect=wanted)
    return Found(diagnosis=diagnosis, folder=folder if asked.with_case else _light(folder))


def _light(folder: Folder) -> Folder:
    """Without what only the diagnosis needs: records of ten thousand ranks are not sent."""
    return msgspec.structs.replace(folder, case=msgspec.structs.replace(folder.case, ranks=()), points={})


def _encoded(line: Line) -> bytes:
    """Paths travel as bytes; text of a file that is no Unicode is written out."""
    if isinstance(line, Begun):
        line = Begun(path=os.fsencode(line.path).hex(), cpu_s=line.cpu_s)
    try:
        return msgspec.msgpack.encode(line)
    except UnicodeEncodeError:
        return msgspec.msgpack.encode(without_surrogates(msgspec.to_builtins(line)))


def _limit_memory(num_bytes: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = num_bytes if most == resource.RLIM_INFINITY else min(num_bytes, most)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, most))


if __name__ == "__main__":
    sys.exit(main())
