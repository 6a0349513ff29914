"""`python -m everstep.checkpoint.persist write|commit|strike`: the agent's hand on the persistent tier, in a process
of its own.

    write  --root R --step K --generation G --world-size W --ranks 0,1 --fds 7,8
           prints {"written_bytes", "total_bytes", "why"}
    commit --root R --step K --world-size W --keep N [--trusted] [--generation G --resumed 1:35,2:40]
           prints {"path", "size_bytes", "dropped", "at", "why", "notes"}
    strike --root R --step K --why TEXT
           prints {"path", "was_struck", "why"}

The first two take --run (default: EVERSTEP_RUN_ID), so that two runs in one folder never mix their parts. One JSON
object on one line of standard output, always; `why` is empty exactly when it was done. Exit code 0 then, else 1. Reads
the arenas through the inherited descriptors; never writes to them.
"""

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence

import msgspec

from everstep.checkpoint.persist.store.storage import sentence
from everstep.errors import EverstepError


def main(argv: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(argv)
    # SIGTERM becomes SystemExit, so that half-written files are removed on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    out = os.fdopen(os.dup(1), "w")
    with out, contextlib.redirect_stdout(sys.stderr):  # whatever libraries print does not belong into the answer
        try:
            answer: msgspec.Struct = _VERBS[given.what](given)
            code = 0
        except OSError as error:
            answer, code = _Failed(why=sentence(error, given.root)), 1
        except EverstepError as error:
            answer, code = _Failed(why=str(error)), 1
        except Exception as error:
            answer, code = _Failed(why=f"{type(error).__name__}: {error}"), 1
        out.write(msgspec.json.encode(answer).decode() + "\n")
    return code


class _Failed(msgspec.Struct, frozen=True, kw_only=True):
    """Has the keys of all answers."""

    written_bytes: int = 0
    total_bytes: int = 0
    path: str = ""
    size_bytes: int = 0
    dropped: tuple[int, ...] = ()
    was_struck: bool = False
    why: str


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m everstep.checkpoint.persist")
    verbs = parser.add_subparsers(dest="what", required=True)
    write, commit, strike = (verbs.add_parser(verb) for verb in _VERBS)
    for verb in (write, commit, strike):
        verb.add_argument("--root", required=True)
        verb.add_argument("--step", type=int, required=True)
    for verb in (write, commit):
        verb.add_argument("--world-size", type=int, required=True)
        verb.add_argument("--run", default=os.environ.get("EVERSTEP_RUN_ID", ""), help="default: EVERSTEP_RUN_ID")
    write.add_argument("--generation", type=int, required=True)
    write.add_argument("--ranks", type=_numbers, required=True, metavar="0,1")
    write.add_argument("--fds", type=_numbers, required=True, metavar="7,8", help="the ranks' arenas, in their order")
    commit.add_argument("--keep", type=int, required=True)
    commit.add_argument("--trusted", action="store_true")
    commit.add_argument("--generation", type=int, default=None, help="the one that commits; those before it are over")
    commit.add_argument(
        "--resumed", type=_pairs, default=(), metavar="1:35,2:40", help="generations that resumed, and from where"
    )
    strike.add_argument("--why", required=True, metavar="TEXT", help="the reason, for later readers")
    return parser


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _pairs(text: str) -> list[tuple[int, int]]:
    return [(int(first), int(second)) for first, _, second in (part.partition(":") for part in text.split(",") if part)]


def _write(given: argparse.Namespace) -> msgspec.Struct:
    from everstep.checkpoint.persist.write.writing import write

    if len(given.ranks) != len(given.fds):
        raise ValueError(f"{len(given.ranks)} ranks and {len(given.fds)} descriptors")
    return write(
        given.root,
        step=given.step,
        generation=given.generation,
        world_size=given.world_size,
        run=given.run,
        arenas=dict(zip(given.ranks, given.fds, strict=True)),
    )


def _commit(given: argparse.Namespace) -> msgspec.Struct:
    from everstep.checkpoint.persist.store.committing import commit

    return commit(
        given.root,
        step=given.step,
        world_size=given.world_size,
        keep=given.keep,
        is_trusted=given.trusted,
        run=given.run,
        generation=given.generation,
        resumed=given.resumed,
    )


def _strike(given: argparse.Namespace) -> msgspec.Struct:
    from everstep.checkpoint.persist.store.striking import strike

    return strike(given.root, step=given.step, why=given.why)


_VERBS: dict[str, Callable[[argparse.Namespace], msgspec.Struct]] = {
    "write": _write,
    "commit": _commit,
    "strike": _strike,
}


if __name__ == "__main__":
    sys.exit(main())
