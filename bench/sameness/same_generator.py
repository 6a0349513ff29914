"""Random programs: pieces put together by a seed. Pure: a seed is a program, to the last byte.

Used by same_programs.py; the pieces are in same_fragments.py and same_fragments_life.py.
"""

import random
import textwrap
from dataclasses import dataclass

import sameness.same_fragments_life  # noqa: F401 - its pieces register themselves
from sameness.same_fragments import FRAGMENTS, Fragment

SCRIPT = "prog.py"
WITNESS = '''import json
import os

_RANK = os.environ["RANK"]
_DRAWS = os.path.abspath(f"draws-{_RANK}.jsonl")


def say(*what):
    """What has to be the same under every launcher."""
    print("say", *what)


def draw(name, value):
    """What has to be as distinct between ranks as it is under torchrun."""
    with open(_DRAWS, "a") as file:
        file.write(json.dumps([name, repr(value)]) + "\\n")
'''
_TORCH_SHARE = 0.4
"""Of the programs, how many may import torch: it takes seconds of processor time in each rank."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """What is put into a folder and started there, in the same way under both launchers."""

    seed: int
    pieces: tuple[str, ...]
    files: dict[str, str]
    options: tuple[str, ...]  # of the launcher
    target: tuple[str, ...]  # what comes after them: the script or module, and its arguments
    env: dict[str, str]
    stdin: str | None
    nproc: int
    logged: bool  # each rank's streams go to files of their own; else only the launcher's own stdout is compared
    again: bool  # started twice in a row under everstep: what it has learned by then must not show


def program(seed: int) -> Program:
    dice = random.Random(f"program {seed}")
    pieces = _pieces(dice)
    logged = dice.random() < 0.7
    nproc = dice.choice([2, 2, 3]) if logged else 1
    options = ["--standalone", f"--nproc-per-node={nproc}"]
    if any(piece.ends for piece in pieces):
        options.append(f"--max-restarts={dice.choice([0, 0, 1])}")
    how = dice.choice([[SCRIPT], [SCRIPT], [f"./{SCRIPT}"], ["-m", SCRIPT.removesuffix(".py")]])
    files = {SCRIPT: _text(pieces, dice), "witness.py": WITNESS}
    for piece in pieces:
        files |= piece.files
    return Program(
        seed=seed,
        pieces=tuple(piece.name for piece in pieces),
        files=files,
        options=tuple(options),
        target=(*how, *(word for piece in pieces for word in piece.argv)),
        env={key: value for piece in pieces for key, value in piece.env.items()},
        stdin=next((piece.stdin for piece in pieces if piece.stdin is not None), None),
        nproc=nproc,
        logged=logged,
        again=dice.random() < 0.3,
    )


def _pieces(dice: random.Random) -> list[Fragment]:
    with_torch = dice.random() < _TORCH_SHARE
    chosen: list[Fragment] = []
    makers = list(FRAGMENTS)
    dice.shuffle(makers)
    wanted = dice.randint(3, 8)
    for make in makers:
        piece = make(dice)
        taken = {one.alone for one in chosen if one.alone}
        if piece.alone in taken or (piece.needs_torch and not with_torch):
            continue
        if piece.ends and (dice.random() < 0.5 or any(one.ends for one in chosen)):
            continue
        chosen.append(piece)
        if len(chosen) == wanted:
            break
    return sorted(chosen, key=lambda piece: piece.ends)  # whatever ends the process is last


def _text(pieces: list[Fragment], dice: random.Random) -> str:
    torch = "import torch\n" if any(piece.needs_torch for piece in pieces) else ""
    body = "".join(f"# {piece.name}\n{piece.body}" for piece in pieces if piece.body) or "pass\n"
    late = "".join(piece.late for piece in pieces)
    guarded = any(piece.needs_guard for piece in pieces) or dice.random() < 0.5
    call = f"main()\n{late}"
    return "".join(
        [
            *(piece.early for piece in pieces),
            *dict.fromkeys(piece.imports for piece in pieces),
            torch,
            "from witness import draw, say\n\n\n",
            *(piece.defs for piece in pieces),
            f"def main():\n{textwrap.indent(body, '    ')}\n\n",
            f'if __name__ == "__main__":\n{textwrap.indent(call, "    ")}' if guarded else call,
        ]
    )
