"""A killed rank's story in the controller: how many files it goes through, and how often it comes back to one.

Starts a real run of two ranks (DDP on gloo, everstep.State), traces the controller, kills rank 1 a few times, and
follows the five turns that matter: the end of the rank, the stop of the others, the store, the start, and the report
that closes the incident; of each the one in which the fewest other reports came. A return is a call into a file that
this turn has been in and has left. Values and their containers (`core/state`, `model`) are the words of the story; they
are counted apart.

    python bench/story.py [--everstep PATH] [--show] [--json FILE]
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measuring.launched import Launched, adopt_orphans, end_on_sigterm, launched
from measuring.losslog import LossLog

SCRIPT = Path(__file__).parent / "programs/many_kills_script.py"
TRACER = Path(__file__).parent / "tracing"
STAGES = {
    "WorkerExited": "IncidentOpened",
    "WorkersStopped": "OpenStore",
    "StoreOpened": "StartWorkers",
    "WorkersStarted": "",
    "MarksReported": "IncidentClosed",
}
"""What each turn is told, and what it must lead to; empty: to whatever."""

WORDS = ("core/state/", "model/")
FIRST_STEP, MORE_STEPS, KILLS = 200, 200, 4
LIMIT_S = 180.0


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    adopt_orphans()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="everstep-story-") as folder:
        records, traced = _trace(Path(folder), args.everstep)
    turns = _of_the_kill(records, traced)
    found = _figures(turns)
    _print(turns, found, is_shown=args.show)
    if args.json:
        args.json.write_text(json.dumps({"figures": found, "turns": turns}, indent=1))
    return 0


def _trace(folder: Path, everstep: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The journal's records, and the controller's turns."""
    run, losses, story = folder / "run", folder / "losses", folder / "story"
    env = {**os.environ, "EVERSTEP_HOME": str(folder), "EVERSTEP_STORY": str(story), "PYTHONPATH": str(TRACER)}
    command = [str(everstep), "run", "--nproc-per-node", "2", "--run-dir", str(run), str(SCRIPT)]
    command += [str(losses), str(folder / "final"), str(folder / "stop")]
    with launched(command, env=env, output=folder / "output") as running:
        log = LossLog(losses)
        _wait(running, log, FIRST_STEP)
        for _ in range(KILLS):
            os.kill(_pid_of(run / "journal.jsonl", rank=1), signal.SIGKILL)
            _wait(running, log, log.last_step + MORE_STEPS)
        os.kill(running.pid, signal.SIGTERM)
        running.wait(LIMIT_S)
        records = _records(run / "journal.jsonl")
    return records, [json.loads(line) for line in story.read_text().splitlines()]


def _wait(running: Launched, log: LossLog, step: int) -> None:
    ends_at = time.monotonic() + LIMIT_S
    while log.last_step < step:
        if running.exit_code() is not None or time.monotonic() > ends_at:
            raise SystemExit(f"the run came to step {log.last_step}: {running.last_output()}")
        time.sleep(0.05)
        log.read()


def _records(journal: Path) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    return [entry for entry in entries if "event" in entry]


def _pid_of(journal: Path, rank: int) -> int:
    started = [r["event"] for r in _records(journal) if r["event"]["type"] == "WorkersStarted"]
    return next(each["pid"] for each in started[-1]["started"] if each["rank"] == rank)


def _of_the_kill(records: list[dict[str, Any]], traced: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each kind the turn in which the fewest others came."""
    first = next(n for n, record in enumerate(records) if record["event"]["type"] == "WorkerExited")
    return [
        _calmest([r for r in records[first:] if r["event"]["type"] == kind and _leads_to(r, action)], traced)
        for kind, action in STAGES.items()
    ]


def _leads_to(record: dict[str, Any], action: str) -> bool:
    return not action or any(each["type"] == action for each in record.get("actions", ()))


def _calmest(records: list[dict[str, Any]], traced: list[dict[str, Any]]) -> dict[str, Any]:
    keys = [[r.get("source", ""), r.get("source_seq", 0), r["event"]["type"]] for r in records]
    turns = [turn for turn in traced if any(key in turn.get("inputs", ()) for key in keys)]
    return min(turns, key=lambda turn: (len(turn["inputs"]), len(turn["hops"]))) | {"record": keys[0][2]}


def _figures(turns: list[dict[str, Any]]) -> dict[str, Any]:
    stages = [{**turn, "hops": _without_words(turn["hops"])} for turn in turns]
    return {
        "files": len({hop for turn in turns for hop in turn["hops"]}),
        "returns": sum(_returns(turn["hops"]) for turn in turns),
        "files_of_stages": len({hop for turn in stages for hop in turn["hops"]}),
        "returns_of_stages": sum(_returns(turn["hops"]) for turn in stages),
        "by_turn": {turn["record"]: [len(set(turn["hops"])), _returns(turn["hops"])] for turn in turns},
    }


def _without_words(hops: list[str]) -> list[str]:
    left: list[str] = []
    for hop in hops:
        if not hop.startswith(WORDS) and left[-1:] != [hop]:
            left.append(hop)
    return left


def _returns(hops: list[str]) -> int:
    return len(hops) - len(set(hops))


def _print(turns: list[dict[str, Any]], found: dict[str, Any], *, is_shown: bool) -> None:
    for kind, (files, returns) in found["by_turn"].items():
        print(f"{kind:16} {files:3} files {returns:4} returns")
    print(f"{'all':16} {found['files']:3} files {found['returns']:4} returns")
    print(f"{'without words':16} {found['files_of_stages']:3} files {found['returns_of_stages']:4} returns")
    entered = Counter(hop for turn in turns for hop in turn["hops"])
    print("\n".join(f"{number:5} {name}" for name, number in entered.most_common(None if is_shown else 10)))
    if is_shown:
        for turn in turns:
            print(f"\n{turn['record']}: " + " > ".join(turn["hops"]))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own = Path(sys.executable).with_name("everstep")
    parser.add_argument("--everstep", type=Path, default=own, help="the command to trace; default: of this Python")
    parser.add_argument("--show", action="store_true", help="every file, and each turn from file to file")
    parser.add_argument("--json", type=Path, help="write the figures and the turns")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
