"""Scenarios: text transcripts that read like documentation. A stimulus, `----`, and what the brain decided.

    # A killed rank: everybody restarts in place, at the next step.
    run ranks=4
    train 10
    kill 2
    ----
    incident i1: ES-P09 rank 2 on n0 was killed by SIGKILL; nothing speaks of lack of memory
    ...

Commands are the keys of COMMANDS. `run_scenario(text)` returns the text with the answers that the brain gives now; a
test compares it with the file, and `pytest --rewrite-scenarios` writes it there for review.
"""

from collections.abc import Callable

from everstep.core.policy import PRESETS, Policy
from everstep.errors import ConfigError
from everstep.model import events
from everstep.model.actions import Action
from everstep.model.spec import Launch, Mode, RunSpec
from everstep.testing.cluster import Cluster
from everstep.testing.transcript import describe_actions

SEPARATOR = "----"


class ScenarioError(ValueError):
    """A line of a scenario is not a command; says the line number and what there is."""


def run_scenario(text: str) -> str:
    """The same scenario with today's answers. Raises ScenarioError, and InvariantError of the brain."""
    player = _Player()
    blocks = []
    number = 0
    for block in text.rstrip("\n").split("\n\n"):
        lines = block.splitlines()
        commands = lines[: lines.index(SEPARATOR)] if SEPARATOR in lines else lines
        out: list[str] = []
        for offset, line in enumerate(commands):
            out += player.play(line, number + offset + 1)
        number += len(lines) + 1
        asks = any(line and not line.startswith("#") for line in commands)
        blocks.append("\n".join([*commands, SEPARATOR, *(out or ["(nothing)"])] if asks else commands))
    return "\n\n".join(blocks) + "\n"


class _Player:
    def __init__(self) -> None:
        self._cluster: Cluster | None = None

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            raise ScenarioError("a scenario begins with `run ...`")
        return self._cluster

    def play(self, line: str, number: int) -> list[str]:
        words = line.split("#", 1)[0].split()
        if not words:
            return []
        name, args = words[0], words[1:]
        if name not in COMMANDS:
            raise ScenarioError(f"line {number}: no command {name!r}; there are: {', '.join(sorted(COMMANDS))}")
        try:
            actions = COMMANDS[name](self, args)
        except (ValueError, KeyError, IndexError, ConfigError) as error:
            raise ScenarioError(f"line {number}: {line!r}: {error}") from error
        return describe_actions(actions)

    def run(self, args: list[str]) -> list[Action]:
        """run ranks=4 nodes=2 standby=1 mode=act policy=default snapshots=yes max_restarts=3 ..."""
        options = dict(arg.split("=", 1) for arg in args)
        nodes = int(options.pop("nodes", "1"))
        spec = RunSpec(
            program="train.py",
            launch=Launch(options.pop("launch", "script")),
            num_slots=nodes,
            nproc_per_node=int(options.pop("ranks", "4")) // nodes,
            num_standby=int(options.pop("standby", "0")),
            mode=Mode(options.pop("mode", "act")),
        )
        snapshots = options.pop("snapshots", "yes") == "yes"
        preset = PRESETS[options.pop("policy", "default")]
        values = {key: float(value) for key, value in options.items()}
        fields = {f: getattr(preset, f) for f in preset.__struct_fields__}
        unknown = set(values) - set(fields)
        if unknown:
            raise ScenarioError(f"unknown options {sorted(unknown)}")
        policy = Policy(**{**fields, **{k: type(fields[k])(v) for k, v in values.items()}})
        self._cluster = Cluster(spec, policy, snapshots=snapshots)
        self._cluster.start()
        return self._cluster.actions


def _node_event(player: _Player, args: list[str]) -> list[Action]:
    return player.cluster.lose_node(args[0])


def _drill(player: _Player, args: list[str]) -> list[Action]:
    kind, *target = args
    rank = int(target[0]) if target and target[0].isdigit() else None
    node = target[0] if target and rank is None else None
    at = player.cluster.clock.now
    return player.cluster.feed(events.DrillRequested(at=at, drill="d1", kind=kind, rank=rank, node=node))


def _stop(player: _Player, args: list[str]) -> list[Action]:
    return player.cluster.feed(events.StopRequested(at=player.cluster.clock.now, why="SIGINT", signal=2))


def _approve(player: _Player, args: list[str]) -> list[Action]:
    return player.cluster.feed(events.ProposalApproved(at=player.cluster.clock.now, incident=args[0]))


def _hold(player: _Player, args: list[str]) -> list[Action]:
    player.cluster.held_back |= set(args)
    return []


def _answer(player: _Player, args: list[str]) -> list[Action]:
    """Actions of these types are answered from now on, those that wait included."""
    player.cluster.held_back -= set(args)
    return player.cluster.restart_controller()


def _hang(player: _Player, args: list[str]) -> list[Action]:
    """hang RANK [CODE] | hang none | hang moved-on: what the hang rule suspects, and what the evidence then says."""
    if args[0] in ("none", "moved-on"):
        culprit = None if args[0] == "none" else 0
        return player.cluster.hang(culprit, moved_on=args[0] == "moved-on")
    return player.cluster.hang(int(args[0]), args[1] if args[1:] else "ES-H02")


def _doctor(player: _Player, args: list[str]) -> list[Action]:
    return player.cluster.feed(events.EvidenceRequested(at=player.cluster.clock.now, request="e1"))


COMMANDS: dict[str, Callable[[_Player, list[str]], list[Action]]] = {
    "run": _Player.run,
    "train": lambda player, args: player.cluster.train(int(args[0])),
    "wait": lambda player, args: player.cluster.wait(float(args[0].removesuffix("s"))),
    "kill": lambda player, args: player.cluster.kill(int(args[0])),
    "hang": _hang,
    "doctor": _doctor,
    "oom": lambda player, args: player.cluster.oom(int(args[0])),
    "signal": lambda player, args: player.cluster.end(int(args[0]), signal=int(args[1])),
    "exit": lambda player, args: player.cluster.end(int(args[0]), code=int(args[1])),
    "raise": lambda player, args: player.cluster.raise_in(int(args[0]), *args[1:]),
    "lose-peer": lambda player, args: player.cluster.lose_peer(int(args[0])),
    "lose-node": _node_event,
    "succeed": lambda player, args: player.cluster.succeed(),
    "restart-controller": lambda player, args: player.cluster.restart_controller(),
    "drill": _drill,
    "stop": _stop,
    "approve": _approve,
    "hold": _hold,
    "answer": _answer,
}
