"""Many training states, each killed at a random step: identical bit for bit, or not called recovered.

    python bench/states.py                     # all, two at a time
    python bench/states.py --only gan fsdp     # those whose name has one of these in it

A complete state does 500 steps: after the kill it must resume at the next step, with every loss as in a run that
everstep has no part in, and no word about completeness. A state whose author forgot something must be refused, by the
name of what was forgotten, and begin as it does under torchrun. A run that ends with other losses is a silent
difference, whatever it was meant to be. Exits with 1 if there is one, or a false alarm, or a forgotten object unnamed.
"""

import argparse
import dataclasses
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from everstep.journal.reader import read_journal
from everstep.model.actions import StartWorkers
from everstep.model.events import StateIncomplete
from everstep.model.record import Record

SCRIPT = Path(__file__).parent / "programs" / "states_script.py"
LIMIT_S = 240.0
FEW, MANY = 24, 500
TWO_RANKS = ("ddp", "zero", "fsdp", "tp")

COMPLETE = """
plain/fp32/sgd/ plain/fp32/momentum/ plain/fp32/adam/cosine plain/fp32/adamw/warmup plain/fp32/fused/
plain/fp32/adafactor/ plain/fp32/rmsprop/plateau plain/fp32/adagrad/ plain/fp32/lbfgs/ plain/fp32/muon/
plain/fp32/sam/ plain/fp32/lookahead/cosine plain/bf16/adamw/ plain/masters/adamw/cosine plain/fp16/adamw/
plain/fp32/adamw/ema plain/fp32/adamw/shadow plain/fp32/adamw/gan plain/fp32/adamw/stats plain/fp32/adamw/teacher
plain/fp32/adamw/torchgen+numpygen+pythongen plain/fp32/adamw/accumulate lora/fp32/adamw/ compiled/fp32/adamw/
ddp/fp32/adamw/ ddp/fp16/momentum/cosine ddp/bf16/adamw/ema ddp/masters/adamw/ ddp/fp32/adamw/gan+shadow
ddp/fp32/adamw/accumulate zero/fp32/adamw/ fsdp/fp32/adamw/ fsdp/bf16/momentum/cosine tp/fp32/adamw/
"""

FORGOTTEN = """
plain/fp32/momentum/:optimizer plain/fp32/adamw/:optimizer plain/fp32/adamw/:model plain/fp32/lbfgs/:optimizer
plain/fp32/muon/:optimizer plain/fp32/sam/:base plain/fp32/lookahead/:slow plain/fp32/adamw/cosine:scheduler
plain/fp32/adamw/warmup:scheduler plain/fp32/adamw/plateau:scheduler plain/fp16/adamw/:scaler
plain/masters/adamw/:masters plain/masters/momentum/:masters plain/fp32/adamw/ema:ema plain/fp32/adamw/shadow:shadow
plain/fp32/adamw/gan:critic plain/fp32/adamw/gan:critic_optimizer plain/fp32/adamw/gan:critic+critic_optimizer
plain/fp32/adamw/stats:stats plain/fp32/adamw/torchgen:torchgen plain/fp32/adamw/numpygen:numpygen
plain/fp32/adamw/pythongen:pythongen lora/fp32/adamw/:optimizer compiled/fp32/adamw/:optimizer
ddp/fp32/adamw/:optimizer ddp/fp16/momentum/:scaler ddp/masters/adamw/:masters ddp/fp32/adamw/ema:ema
zero/fp32/adamw/:optimizer fsdp/fp32/adamw/:optimizer fsdp/fp32/adamw/:model tp/fp32/adamw/:optimizer
"""

NAMED = {"base": "SGD", "slow": "slow", "masters": "optimizer", "pythongen": "Random"}
"""What a sentence has to name where that is not the keyword."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    name: str
    is_identical: bool
    resumed: list[int | None]
    why: str
    wrong: str  # empty: as it must be
    is_silent: bool = False


def ranks_of(state: str) -> int:
    return 2 if state.partition("/")[0] in TWO_RANKS else 1


def plain(state: str, forget: str, steps: int, folder: Path) -> None:
    """The training without everstep."""
    num_ranks, port = ranks_of(state), free_port()
    ranks = []
    for rank in range(num_ranks):
        env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TRAIL": str(folder), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(SCRIPT), state, "--forget", forget, "--steps", str(steps)]
        with (folder / f"log-{rank}").open("wb") as log:
            ranks.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
    for rank in ranks:
        if rank.wait(LIMIT_S):
            raise RuntimeError((folder / "log-0").read_text()[-1500:])


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def losses(folder: Path, rank: int) -> dict[int, str]:
    """Of each step, as it was done last."""
    path = folder / str(rank)
    return {int(w[0]): w[1] for w in map(str.split, path.read_text().splitlines())} if path.exists() else {}


def killed(state: str, forget: str, steps: int, kill_after: int, folder: Path) -> int:
    """The same under everstep, with a SIGKILL of the last rank after this step. Returns the exit code."""
    num_ranks = ranks_of(state)
    env = {**os.environ, "TRAIL": str(folder), "WAIT_AFTER": str(kill_after + 2), "OMP_NUM_THREADS": "1"}
    env["EVERSTEP_HOME"] = str(folder / "home")
    command = [sys.executable, "-m", "everstep.cli.main", "run", "--nproc-per-node", str(num_ranks)]
    command += ["--run-dir", str(folder / "run"), str(SCRIPT), state, "--forget", forget, "--steps", str(steps)]
    with (folder / "log").open("wb") as log:
        run = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    trail, until = folder / str(num_ranks - 1), time.monotonic() + LIMIT_S
    while run.poll() is None and time.monotonic() < until:
        lines = trail.read_text().splitlines() if trail.exists() else []
        if lines and int(lines[-1].split()[0]) >= kill_after:
            os.kill(int(lines[-1].split()[2]), signal.SIGKILL)
            break
        time.sleep(0.005)
    try:
        return run.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGINT)
        return run.wait(60)


def examine(name: str, seed: int) -> Outcome:
    state, _, forget = name.partition(":")
    steps = FEW if forget else MANY
    kill_after = random.Random(f"{seed} {name}").randrange(5, steps - 4)
    with tempfile.TemporaryDirectory(prefix="states-") as base:
        peace, hurt = Path(base, "peace"), Path(base, "hurt")
        peace.mkdir()
        hurt.mkdir()
        try:
            plain(state, forget, steps, peace)
            code = killed(state, forget, steps, kill_after, hurt)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            return Outcome(name, False, [], "", f"did not run: {error}")
        return judge(name, forget, code, peace, hurt)


def judge(name: str, forget: str, code: int, peace: Path, hurt: Path) -> Outcome:
    ranks = range(ranks_of(name))
    is_identical = all(losses(peace, rank) == losses(hurt, rank) != {} for rank in ranks)
    records = [e for e in read_journal(hurt / "run" / "journal.jsonl").entries if isinstance(e, Record)]
    whys = [r.event.why for r in records if isinstance(r.event, StateIncomplete)]
    starts = [a for r in records for a in r.actions if isinstance(a, StartWorkers)]
    resumed = [start.resume_step for start in starts]
    why, wrong = (whys[0] if whys else ""), ""
    is_silent = code == 0 and not is_identical
    if code != 0 or len(resumed) != 2:
        wrong = f"code {code}, {len(resumed)} starts: {(hurt / 'log').read_text()[-1500:]}"
    elif is_silent:
        wrong = "SILENT DIFFERENCE"
    elif forget and resumed[1] is not None:
        wrong = f"resumed at {resumed[1]} though {forget} was forgotten"
    elif forget:
        unnamed = [part for part in forget.split("+") if NAMED.get(part, part) not in why]
        wrong = f"not named: {unnamed}" if unnamed else ""
    elif why:
        wrong = "FALSE ALARM"
    elif resumed[1] is None:
        wrong = "began anew"
    return Outcome(name, is_identical, resumed, why, wrong, is_silent)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    names = [name for name in (COMPLETE + FORGOTTEN).split() if any(part in name for part in args.only)]
    began = time.monotonic()
    with ThreadPoolExecutor(args.jobs) as pool:
        outcomes = []
        for outcome in pool.map(lambda name: examine(name, args.seed), names):
            outcomes.append(outcome)
            word = "identical" if outcome.is_identical else "differs"
            verdict = outcome.wrong or "ok"
            print(f"{outcome.name:48} {word:10} {outcome.resumed!s:12} {verdict:10} {outcome.why[:150]}", flush=True)
    forgotten = [each for each in outcomes if ":" in each.name]
    complete = [each for each in outcomes if ":" not in each.name]
    print(f"{len(outcomes)} states in {time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.0f}")
    print(f"complete: {sum(not each.wrong for each in complete)} of {len(complete)} resumed and identical")
    print(f"forgotten: {sum(not each.wrong for each in forgotten)} of {len(forgotten)} named, and not resumed from")
    print(f"silent differences: {sum(each.is_silent for each in outcomes)} of {len(outcomes)}")
    return int(any(each.wrong for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
