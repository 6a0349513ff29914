"""How long a training is away when a whole node is killed: everstep with standbys, NVIDIA's ft_launcher with spare
nodes, and torchrun with as many launchers.

SIGKILL of one node's agent and of everything below it, to the first new step of the slowest rank. Four nodes of one
rank and two that wait; the next node is killed when the one that came in, and whoever waits after it, are ready. Every
node is processes on this machine. With --lose everstep's engine forgets the node's memory as well, so its ranks come
from copies on other nodes. Ends everything it started, also on Ctrl-C.

    python bench/replace.py [--kills N] [--only everstep,ft_launcher] [--network namespaces] [--lose] [--json FILE]
"""

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from contests.peers import MAX_RESTARTS, Contender, torchrun
from contests.spares import ft_launcher_with_spares
from measuring.figures import seconds, spread, table
from measuring.launched import Launched, adopt_orphans, descendants, end_on_sigterm, launched
from measuring.steplog import StepLogs, first_step_of_slowest, latest_by_rank, steps_of_attempt

SCRIPT = Path(__file__).parent / "programs/replace_script.py"
NUM_NODES, NUM_WAITING = 4, 2
MIN_STEPS = 20
START_S, RECOVERY_S = 600.0, 300.0
"""Only a launcher that never trains, or never comes back, waits so long."""

SETTLE_S = 15.0
"""From the first steps to the kill, for launchers that do not tell when their spare nodes wait. Generous: a launcher's
own imports take some seconds, and up to this on a busy machine."""

CONTENDERS = ("everstep", "ft_launcher", "torchrun")
_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """One kill. `recovered_s` None: never, and why."""

    contender: str
    kill: int
    node: str
    recovered_s: float | None
    lost_steps: int | None = None  # completed on all ranks, and done again; None: that launcher resumes nothing
    why: str = ""


class NeverTrainedError(Exception):
    pass


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    adopt_orphans()
    end_on_sigterm()
    found: list[Replaced] = []
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", ignore_cleanup_errors=True) as scratch:
        for name in args.only:
            folder = Path(scratch) / name
            (folder / "steps").mkdir(parents=True)
            try:
                found += _everstep(folder, args) if name == "everstep" else _launchers(name, folder, args)
            except NeverTrainedError as failure:
                print(f"{name}: {failure}", file=sys.stderr)
    print(report(found, args))
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    return 0 if found else 1


def report(found: list[Replaced], args: argparse.Namespace) -> str:
    rows = []
    for name in dict.fromkeys(one.contender for one in found):
        mine = [one for one in found if one.contender == name]
        figures = spread([one.recovered_s if one.recovered_s is not None else float("inf") for one in mine])
        lost = [one.lost_steps for one in mine if one.lost_steps is not None]
        told = f"{sum(lost)} in {len(lost)} kills" if lost else "not resumed"
        if figures is not None:
            spans = (seconds(figures.median), seconds(figures.least), seconds(figures.most))
            rows.append((name, str(figures.num), str(figures.num - figures.num_never), *spans, told))
    how = "and its memory" if args.lose else "agent and rank"
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
    head = f"SIGKILL of one of {NUM_NODES} nodes ({how}), {NUM_WAITING} waiting, network {args.network}, load {load},"
    return f"{head} to the first new step of the slowest rank\n\n" + table(
        ("launcher", "kills", "came back", "median", "min", "max", "completed steps lost"), rows
    )


def _everstep(folder: Path, args: argparse.Namespace) -> Iterator[Replaced]:
    """One run, a node after another."""
    run_dir = folder / "run"
    line = [str(Path(sys.executable).with_name("everstep")), "run", "--run-dir", str(run_dir)]
    line += ["--local-nodes", str(NUM_NODES), "--standby", str(NUM_WAITING), "--network", args.network]
    line += ["--max-restarts", "1000", str(SCRIPT)]
    env = {**os.environ, "EVERSTEP_BENCH_DIR": str(folder / "steps"), "EVERSTEP_HOME": str(folder)}
    env["EVERSTEP_BENCH_STATE"] = "1"
    rng = random.Random(args.seed)
    with launched(line, env=env, output=folder / "launcher.log") as running:
        logs = StepLogs(folder / "steps")
        for kill in range(1, args.kills + 1):
            _train(running, logs, lambda: _num_ready(run_dir) >= NUM_NODES + NUM_WAITING)
            node, agent = rng.choice(sorted(_active(run_dir).items()))
            killing = partial(_lose, run_dir, node) if args.lose else partial(_kill_all, agent)
            yield _measure("everstep", running, logs, kill, node, killing, resumes=True)


def _peer(name: str, port: int, args: argparse.Namespace) -> tuple[Contender, list[str]]:
    """A launcher and its arguments: one per node, those that are too many wait."""
    if name == "ft_launcher":
        contender = ft_launcher_with_spares(install=not args.no_install)
        command, nodes = list(contender.command), f"{NUM_NODES}:{NUM_NODES + NUM_WAITING}"
    else:
        contender = torchrun(workaround=True)
        command, nodes = [word for word in contender.command if word != "--standalone"], str(NUM_NODES)
        command += ["--monitor-interval", "0.1"]
    command += ["--nnodes", nodes, "--nproc-per-node", "1", "--max-restarts", str(MAX_RESTARTS), "--rdzv-id", "bench"]
    return contender, [*command, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]


def _launchers(name: str, folder: Path, args: argparse.Namespace) -> Iterator[Replaced]:
    """As many as there are nodes. A killed one is started again when the job trains, as a scheduler would do, and
    waits. The first one, which holds the rendezvous, is never killed."""
    contender, command = _peer(name, _free_port(), args)
    if contender.absent is not None:
        raise NeverTrainedError(f"absent: {contender.absent}")
    print(f"{name} {contender.version}: {' '.join(command[1:])}", file=sys.stderr)
    env = {**os.environ, **contender.env, "EVERSTEP_BENCH_DIR": str(folder / "steps"), "TMPDIR": str(folder)}
    rng = random.Random(args.seed)
    with contextlib.ExitStack() as all_nodes:

        def start(number: int) -> Launched:
            line = [*command, "--rdzv-conf", f"is_host={int(number == 0)}", str(SCRIPT)]
            return all_nodes.enter_context(launched(line, env=env, output=folder / f"node-{number}.log"))

        nodes = {number: start(number) for number in range(NUM_NODES + NUM_WAITING)}
        logs = StepLogs(folder / "steps")
        for kill in range(1, args.kills + 1):
            _train(nodes[0], logs, lambda: True)
            time.sleep(SETTLE_S)  # those that wait have to be ready, and do not say so
            logs.read()
            pids = {step.pid for step in latest_by_rank(logs.done).values()}
            training = [n for n, one in nodes.items() if n and pids & set(descendants(one.pid))]
            victim = rng.choice(training)
            killing = partial(_kill_all, nodes[victim].pid)
            one = _measure(name, nodes[0], logs, kill, str(victim), killing, resumes=False)
            yield one
            if one.recovered_s is None:
                return
            nodes[max(nodes) + 1] = start(max(nodes) + 1)
            del nodes[victim]


def _train(running: Launched, logs: StepLogs, is_ready: Callable[[], bool]) -> None:
    """Until all ranks step and whoever waits is ready. Raises NeverTrainedError."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        logs.read()
        newest = latest_by_rank(logs.done)
        counts = steps_of_attempt(logs.done, {step.pid for step in newest.values()})
        same = len({step.restart for step in newest.values()}) == 1
        if same and len(counts) == NUM_NODES and min(counts.values()) >= MIN_STEPS and is_ready():
            return
        if running.exit_code() is not None:
            raise NeverTrainedError(f"ended with {running.exit_code()}: {running.last_output()[-400:]}")
        time.sleep(_POLL_S)
    raise NeverTrainedError(f"not {MIN_STEPS} steps of {NUM_NODES} ranks within {START_S:g} s")


def _measure(
    name: str,
    running: Launched,
    logs: StepLogs,
    kill: int,
    node: str,
    killing: Callable[[], None],
    *,
    resumes: bool,
) -> Replaced:
    logs.read()
    old_pids = {step.pid for step in logs.done}
    killed_at = time.monotonic()
    killing()
    while time.monotonic() - killed_at < RECOVERY_S:
        logs.read()
        at = first_step_of_slowest(logs.done, after=killed_at, old_pids=old_pids, num_ranks=NUM_NODES)
        if at is not None:
            lost = _lost_steps(logs, old_pids) if resumes else None
            print(
                f"  {name} kill {kill}, node {node}: {at - killed_at:.2f} s, lost {lost}", file=sys.stderr, flush=True
            )
            return Replaced(contender=name, kill=kill, node=node, recovered_s=at - killed_at, lost_steps=lost)
        if running.exit_code() is not None:
            break
        time.sleep(_POLL_S)
    why = f"no step of a new attempt within {RECOVERY_S:g} s: {running.last_output()[-400:]}"
    return Replaced(contender=name, kill=kill, node=node, recovered_s=None, why=why)


def _lost_steps(logs: StepLogs, old_pids: set[int]) -> int:
    """Steps that every rank had completed, and that were done again."""
    newest = latest_by_rank([step for step in logs.done if step.pid in old_pids])
    completed = min(step.step for step in newest.values())
    first = min(step.step for step in logs.done if step.pid not in old_pids)
    return max(0, completed + 1 - first)


def _kill_all(root: int) -> None:
    """The agent first, so that it cannot tell; then all that it had."""
    below = descendants(root)
    for pid in (root, *below):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _lose(run_dir: Path, node: str) -> None:
    """Returns when the machine's end has been asked for; the drill's own wait goes on in the background."""
    command = [str(Path(sys.executable).with_name("everstep")), "drill", "lose-node", node, "--run", str(run_dir)]
    subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _journal(run_dir: Path) -> list[dict[str, object]]:
    with contextlib.suppress(OSError):
        lines = (run_dir / "journal.jsonl").read_text().splitlines()[1:]
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found
    return []


def _num_ready(run_dir: Path) -> int:
    """Nodes that live, and whose template can fork."""
    ready: set[object] = set()
    for record in _journal(run_dir):
        event = record.get("event", {})
        assert isinstance(event, dict)
        if event.get("type") == "TemplateReported" and event.get("usable"):
            ready.add(event["node"])
        elif event.get("type") == "NodeLost":
            ready.discard(event["node"])
    return len(ready)


def _active(run_dir: Path) -> dict[str, int]:
    """Agents of the nodes that train now."""
    pids: dict[str, int] = {}
    active: dict[int, list[str]] = {}
    for record in _journal(run_dir):
        event, actions = record.get("event", {}), record.get("actions", [])
        assert isinstance(event, dict)
        assert isinstance(actions, list)
        if event.get("type") == "NodeJoined":
            pids[event["node"]] = event["pid"]
        for action in actions:
            if action.get("type") == "StartWorkers":
                active.setdefault(action["generation"], []).append(action["node"])
    return {node: pids[node] for node in active[max(active)]}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def _names(text: str) -> list[str]:
    unknown = [name for name in text.split(",") if name not in CONTENDERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no launcher {unknown[0]!r}; there are: {', '.join(CONTENDERS)}")
    return text.split(",")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=10, help="of each (default %(default)s)")
    parser.add_argument("--only", type=_names, default=list(CONTENDERS), metavar="NAME,...")
    parser.add_argument("--network", default="loopback", help="everstep's: loopback, namespaces")
    parser.add_argument("--lose", action="store_true", help="everstep: the node's memory is gone with it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-install", action="store_true", help="use what is there")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
