"""Scenarios: text transcripts that read like documentation. A stimulus, `----`, and what the brain decided.

    # A killed rank: everybody restarts in place, at the next step.
    run ranks=4
    train 10
    kill 2
    ----
    incident i1: ES-P09 rank 2 on n0 was killed by SIGKILL; no sign of lack of memory
    ...

Commands are the keys of COMMANDS. `run_scenario(text)` returns the text with the answers that the brain gives now; a
test compares it with the file, and `pytest --rewrite-scenarios` writes it there for review.
"""

from collections.abc import Callable

from everstep.core.state.policy import PRESETS, Policy
from everstep.errors import ConfigError
from everstep.knowledge.drained import drained, withdrawn
from everstep.model import events
from everstep.model.actions import Action
from everstep.model.facts import RankGroup
from everstep.model.spec import Launch, Mode, RunSpec
from everstep.testing.cluster import Cluster
from everstep.testing.transcript import describe_actions

SEPARATOR = "----"


class ScenarioError(ValueError):
    """A line of a scenario is not a command; says the line number and what there is."""


def run_scenario(text: str) -> str:
    """Return the same scenario with today's answers. Raises ScenarioError, and InvariantError of the brain."""
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
        """run ranks=4 nodes=2 (or 2:4) capacity=3 racks=a,b standby=1 mode=act policy=default snapshots=yes
        collectives=yes own_steps=yes copies_lag=1 disk=/ckpt every=600 max_restarts=3 ..."""
        options = dict(arg.split("=", 1) for arg in args)
        least, _, most = options.pop("nodes", "1").partition(":")
        nodes = int(most or least)
        spec = RunSpec(
            program="train.py",
            launch=Launch(options.pop("launch", "script")),
            num_slots=nodes,
            min_slots=int(least) if most else 0,
            max_slots=nodes if most else 0,
            nproc_per_node=int(options.pop("ranks", "4")) // nodes,
            num_standby=int(options.pop("standby", "0")),
            mode=Mode(options.pop("mode", "act")),
            checkpoint_dir=options.pop("disk", ""),
            checkpoint_every_s=float(options.pop("every", "600")),
        )
        racks = tuple(options.pop("racks", "").split(","))
        snapshots = options.pop("snapshots", "yes") == "yes"
        collectives = options.pop("collectives", "yes") == "yes"
        own_steps = options.pop("own_steps", "yes") == "yes"
        copies_lag = int(options.pop("copies_lag")) if "copies_lag" in options else None
        capacity = int(options.pop("capacity")) if "capacity" in options else None
        preset = PRESETS[options.pop("policy", "default")]
        values = {key: float(value) for key, value in options.items()}
        fields = {f: getattr(preset, f) for f in preset.__struct_fields__}
        unknown = set(values) - set(fields)
        if unknown:
            raise ScenarioError(f"unknown options {sorted(unknown)}")
        policy = Policy(**{**fields, **{k: type(fields[k])(v) for k, v in values.items()}})
        self._cluster = Cluster(
            spec,
            policy,
            snapshots=snapshots,
            collectives=collectives,
            own_steps=own_steps,
            copies_lag=copies_lag,
            racks=racks,
            capacity=capacity,
        )
        self._cluster.start()
        return self._cluster.actions


def _groups(player: _Player, args: list[str]) -> list[Action]:
    """groups pp=0,1 pp=2,3 ...: the ranks declare which of them work together."""
    pairs = [arg.split("=", 1) for arg in args]
    groups = tuple(RankGroup(title=title, ranks=tuple(map(int, ranks.split(",")))) for title, ranks in pairs)
    at, generation = player.cluster.clock.now, player.cluster.state.generation
    return player.cluster.feed(events.GroupsLearned(at=at, generation=generation, groups=groups))


def _disk(player: _Player, args: list[str]) -> list[Action]:
    """disk fails WHY ... | disk works"""
    player.cluster.tier.why = " ".join(args[1:]) if args[0] == "fails" else ""
    return []


def _node_event(player: _Player, args: list[str]) -> list[Action]:
    return player.cluster.lose_node(args[0])


def _unheard(player: _Player, args: list[str]) -> list[Action]:
    """unheard NODE: it trains on, and what it reports comes no more."""
    player.cluster.unheard.add(args[0])
    return []


def _drill(player: _Player, args: list[str]) -> list[Action]:
    """drill KIND [RANK or NODE] [name=value ...]; all are d1 unless id=d2 is given."""
    kind, *rest = args
    target = [arg for arg in rest if "=" not in arg]
    given = dict(arg.split("=", 1) for arg in rest if "=" in arg)
    options = {name: float(value) if value[:1].isdigit() else value for name, value in given.items() if name != "id"}
    rank = int(target[0]) if target and target[0].isdigit() else None
    requested = events.DrillRequested(
        at=player.cluster.clock.now,
        drill=given.get("id", "d1"),
        kind=kind,
        rank=rank,
        node=target[0] if target and rank is None else None,
        options=options,
    )
    return player.cluster.feed(requested)


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
    """hang RANK [CODE] [group=0,1] [others=2,3] [doubt=waits|computes] [at=LINE] [limit=S] | hang none | hang moved-on:
    what the hang rule suspects, and what the evidence then says."""
    if args[0] in ("none", "moved-on"):
        culprit = None if args[0] == "none" else 0
        return player.cluster.hang(culprit, moved_on=args[0] == "moved-on")
    given = dict(arg.split("=", 1) for arg in args if "=" in arg)
    group, others = (tuple(map(int, given[k].split(","))) if k in given else () for k in ("group", "others"))
    codes = [arg for arg in args[1:] if "=" not in arg]
    return player.cluster.hang(
        int(args[0]),
        codes[0] if codes else "ES-H02",
        group=group,
        others=others,
        doubt=given.get("doubt", ""),
        place=given.get("at", ""),
        limit_s=float(given["limit"]) if "limit" in given else None,
    )


def _restart(player: _Player, args: list[str]) -> list[Action]:
    """restart [WHO]: a user does not want to wait until a standstill ends."""
    return player.cluster.feed(events.RestartRequested(at=player.cluster.clock.now, by=args[0] if args else ""))


def _break(player: _Player, args: list[str]) -> list[Action]:
    """break NODE KIND,KIND [CHANCE] | break NODE mute: what the machine fails at when it is examined."""
    if args[1] == "mute":
        player.cluster.exams.mute.add(args[0])
    else:
        player.cluster.exams.break_at(args[0], args[1], float(args[2]) if args[2:] else 1.0)
    return []


def _examined(player: _Player, args: list[str]) -> list[Action]:
    """examined NODE EXAM: the node says now that it passed."""
    cluster = player.cluster
    at, generation = cluster.clock.now, cluster.state.generation
    said = events.NodeExamined(at=at, node=args[0], generation=generation, exam=args[1], passed=True, why="late")
    return cluster.feed(said)


def _anomaly(player: _Player, args: list[str]) -> list[Action]:
    """anomaly CODE RANK [agreed=STEP] [blame=WHOSE] [why nobody is to blame ...]"""
    code, rank, *rest = args
    agreed = next((int(arg.removeprefix("agreed=")) for arg in rest if arg.startswith("agreed=")), None)
    blame = next((arg.removeprefix("blame=") for arg in rest if arg.startswith("blame=")), "")
    refused = " ".join(arg for arg in rest if not arg.startswith(("agreed=", "blame=")))
    return player.cluster.anomaly(code, int(rank), refused, agreed, blame)


def _damage(player: _Player, args: list[str]) -> list[Action]:
    """damage STEP RANK [NODE] | damage PATH: of a rank's own memory, of its copy on NODE, of a checkpoint."""
    if args[0].startswith("/"):
        player.cluster.memory.damaged.add(args[0])
    else:
        player.cluster.memory.damaged.add((args[2] if args[2:] else "", int(args[1]), int(args[0])))
    return []


def _checkpoint(player: _Player, args: list[str]) -> list[Action]:
    """checkpoint [trusted]: the newest step is in the persistent tier."""
    return player.cluster.checkpoint(trusted="trusted" in args)


def _late_copy(player: _Player, args: list[str]) -> list[Action]:
    """late-copy STEP GENERATION RANK NODE: it was on its way when that generation ended."""
    step, generation, rank = map(int, args[:3])
    player.cluster.memory.arrive_late(rank, args[3], step, generation)
    return []


def _restore_failed(player: _Player, args: list[str]) -> list[Action]:
    """restore-failed RANK STEP SOURCE [WHERE] [unfit]: of what the brain did not choose, or was wrong about."""
    cluster, rank = player.cluster, int(args[0])
    failed = events.RestoreFailed(
        at=cluster.clock.now,
        node=cluster.state.workers[rank].node,
        generation=cluster.state.generation,
        rank=rank,
        step=int(args[1]),
        source=args[2],
        where=args[3] if args[3:] and args[3] != "unfit" else "",
        why="it is not there",
        is_unfit="unfit" in args,
        is_damaged="unfit" not in args,
    )
    return cluster.feed(failed)


def _incomplete(player: _Player, args: list[str]) -> list[Action]:
    """incomplete RANK STEP WHAT ...: its State leaves something out."""
    cluster, rank = player.cluster, int(args[0])
    event = events.StateIncomplete(
        at=cluster.clock.now,
        node=cluster.state.workers[rank].node,
        generation=cluster.state.generation,
        rank=rank,
        step=int(args[1]),
        why=" ".join(args[2:]),
    )
    return cluster.feed(event)


def _drain(player: _Player, args: list[str]) -> list[Action]:
    """drain NODE [why ...]: an operator drains it."""
    alert = drained(player.cluster.clock.now, f"anna drains this node: {' '.join(args[1:])}", "operator")
    return player.cluster.feed(events.NodeAlerted(at=alert.at, node=args[0], alerts=(alert,)))


def _undrain(player: _Player, args: list[str]) -> list[Action]:
    """undrain NODE: it may stay."""
    alert = withdrawn(player.cluster.clock.now, "anna lets this node stay", "operator")
    return player.cluster.feed(events.NodeAlerted(at=alert.at, node=args[0], alerts=(alert,)))


def _update(player: _Player, args: list[str]) -> list[Action]:
    """update VERSION [urgent] [by=WHO] [cannot start, because ...]: a user changed the code."""
    version, *rest = args
    words = [word for word in rest if word != "urgent" and not word.startswith("by=")]
    if words:
        player.cluster.broken[version] = " ".join(words)
    requested = events.UpdateRequested(
        at=player.cluster.clock.now,
        version=version,
        source=f"git {version}",
        code=f"/run/code/{version}",
        root="/home/anna/job",
        is_urgent="urgent" in rest,
        by=next((word[3:] for word in rest if word.startswith("by=")), ""),
    )
    return player.cluster.feed(requested)


def _doctor(player: _Player, args: list[str]) -> list[Action]:
    return player.cluster.feed(events.EvidenceRequested(at=player.cluster.clock.now, request="e1"))


COMMANDS: dict[str, Callable[[_Player, list[str]], list[Action]]] = {
    "run": _Player.run,
    "train": lambda player, args: player.cluster.train(int(args[0])),
    "wait": lambda player, args: player.cluster.wait(float(args[0].removesuffix("s"))),
    "kill": lambda player, args: player.cluster.kill(int(args[0])),
    "hang": _hang,
    "went-on": lambda player, args: player.cluster.went_on(),
    "restart": _restart,
    "break": _break,
    "examined": _examined,
    "alert": lambda player, args: player.cluster.alert(*args),
    "drain": _drain,
    "undrain": _undrain,
    "unheard": _unheard,
    "anomaly": _anomaly,
    "doctor": _doctor,
    "damage": _damage,
    "late-copy": _late_copy,
    "restore-failed": _restore_failed,
    "incomplete": _incomplete,
    "checkpoint": _checkpoint,
    "groups": _groups,
    "disk": _disk,
    "agree": lambda player, args: player.cluster.agree(int(args[0]) if args else None),
    "oom": lambda player, args: player.cluster.oom(int(args[0])),
    "signal": lambda player, args: player.cluster.end(int(args[0]), signal=int(args[1])),
    "signal-after-end": lambda player, args: player.cluster.end_after_work(int(args[0]), int(args[1])),
    "exit": lambda player, args: player.cluster.end(int(args[0]), code=int(args[1])),
    "raise": lambda player, args: player.cluster.raise_in(int(args[0]), *args[1:]),
    "say": lambda player, args: player.cluster.say(int(args[0]), " ".join(args[1:])),
    "lose-peer": lambda player, args: player.cluster.lose_peer(int(args[0])),
    "lose-node": _node_event,
    "have": lambda player, args: player.cluster.have(int(args[0])),
    "fix-size": lambda player, args: player.cluster.fix_size(" ".join(args)),
    "lose-rack": lambda player, args: player.cluster.lose_rack(args[0]),
    "silent": lambda player, args: player.cluster.silence(args[0], *map(float, args[1:])),
    "late": lambda player, args: player.cluster.be_late(args[0], *map(float, args[1:])),
    "succeed": lambda player, args: player.cluster.succeed(),
    "update": _update,
    "restart-controller": lambda player, args: player.cluster.restart_controller(),
    "drill": _drill,
    "stop": _stop,
    "approve": _approve,
    "hold": _hold,
    "answer": _answer,
}
