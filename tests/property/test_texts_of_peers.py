"""Every text of every message of a peer is hostile, one at a time, and what leaves the run is looked at: the memory of
machines, the batch script of a later job, what goes to a terminal, and the pages' answers."""

import asyncio
import re
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from everstep.cli.main import main
from everstep.cli.reading import Opened, open_run
from everstep.controller.peers.gate import Gate
from everstep.controller.peers.peers import Peer, Peers
from everstep.controller.remembering import Remembering
from everstep.core.state.schema import Member, Role, State
from everstep.engines.hosts.admission import Shape, objection
from everstep.engines.hosts.host import Host
from everstep.engines.slurm import batch
from everstep.errors import ConfigError
from everstep.health.store import HealthError, Store
from everstep.journal.writer import Journal
from everstep.model.actions import Concluded, IncidentClosed, IncidentOpened, Refused
from everstep.model.events import Event, NodeInDoubt, NodeJoined, RunStarted
from everstep.model.names import MachineName
from everstep.model.record import Header, Record
from everstep.model.spec import RunSpec
from everstep.notices.messages import MAX_CHARS, messages_of
from everstep.report.handing.html import incident_html
from everstep.report.handing.markdown import incident_markdown
from everstep.report.parts.sentences import event_sentence
from everstep.report.picture.incidents import incident_page
from everstep.wire.allowed import OF_AGENTS
from everstep.wire.codec import encode
from everstep.wire.credentials import RunSecret
from everstep.wire.joining import Join
from everstep.wire.messages import Report

OURS, THEIRS = "gpu-7", "gpu-victim"
TEXTS = (
    "n1\ntouch PWNED\n#",
    "n1\r\x0b\x85\u2028touch PWNED",
    "a'b\"c",
    "n[1-999]",
    "a,b",
    "$(id)`id`;id|id&",
    "\x1b]0;owned\x07\x1b[2J\x9b5A\u202e",
    "</td><script>alert(1)</script>",
    "-oProxyCommand=id",
    "A" * 100_000,
    "",
    THEIRS,
)
PLAIN = {"node": "n0", "host": OURS, "severity": "fault", "code": "ES-M01", "blame": "machine", "action": "evict"}
SPEC = RunSpec(program="train.py")
SCRIPT = batch.Submission(
    num_nodes=2, num_standby=0, everstep=("everstep",), arguments=("t.py",), runs="/r", exclude=(MachineName(OURS),)
)


class Filler:
    """Values of any type of message, of which the text at one place is another one."""

    def __init__(self, place: int, text: str, at: float) -> None:
        self.left, self.text = place, text
        kinds = msgspec.inspect
        self.others = {kinds.FloatType: at, kinds.BoolType: True, kinds.IntType: 1, kinds.BytesType: b""}

    def made(self, kind: Any, name: str = "") -> Any:
        kinds = msgspec.inspect
        match kind:
            case kinds.StructType(cls=cls):
                fields = {each.encode_name: self.made(each.type, each.name) for each in kind.fields}
                config = cls.__struct_config__
                if config.array_like:
                    return list(fields.values())
                return fields | ({config.tag_field: config.tag} if config.tag_field else {})
            case kinds.StrType():
                self.left -= 1
                return self.text if self.left == -1 else PLAIN.get(name, "x")
            case kinds.UnionType(types=types):
                return self.made(next((each for each in types if not isinstance(each, kinds.NoneType)), types[0]), name)
            case kinds.VarTupleType(item_type=item) | kinds.ListType(item_type=item):
                return [self.made(item, name)]
            case kinds.TupleType(item_types=items):
                return [self.made(each, name) for each in items]
            case kinds.DictType(key_type=key, value_type=value):
                return {self.made(key): self.made(value)}
            case kinds.EnumType(cls=cls):
                return next(iter(cls)).value
        return self.others[type(kind)]


def with_each_text_replaced(cls: type, at: float) -> Iterator[Any]:
    """A message for each of its texts and each of TEXTS."""
    info = msgspec.inspect.type_info(cls)
    counting = Filler(1 << 20, "", at)
    counting.made(info)
    for place in range((1 << 20) - counting.left):
        for text in TEXTS:
            yield msgspec.convert(Filler(place, text, at).made(info), cls, builtin_types=(bytes,))


class Door:
    """What the controller lets in of one agent, whose key is of the machine `machine`."""

    def __init__(self, machine: str) -> None:
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        secret = RunSecret("secret of a test, and long enough", "r1")
        self._peers = Peers(spec=SPEC, gate=Gate(secret, run="r1"), put=self.queue, listener=self)
        self._peer = Peer("n0", "agent", self, machine=machine)
        self._peers.admit(self._peer, "")

    def let_in(self, number: int, event: Event) -> list[Event]:
        data = bytearray(encode(Report(source_seq=number, event=event)))
        self._peers.hear(self._peer, data, is_binary=True)
        return [self.queue.get_nowait().event for _ in range(self.queue.qsize())]

    def last_seq(self, name: str) -> int:
        return 0

    def connected(self, peer: Peer) -> None: ...
    def heard(self, name: str) -> None: ...
    def send(self, message: object) -> None: ...
    def end(self, why: str) -> None: ...
    def go_on(self) -> None: ...

    def settle_at_once(self, name: str, seq: int, event: Event) -> bool:
        return False


@pytest.fixture(scope="module")
def let_in() -> list[Event]:
    """Every event of an agent with each of its texts replaced, as the controller takes it."""

    async def through_the_door() -> list[Event]:
        door, found, number = Door(OURS), [], 0
        for cls in sorted(OF_AGENTS, key=lambda each: each.__name__):
            for event in with_each_text_replaced(cls, time.time() - 40 * 86400.0):
                number += 1
                found += door.let_in(number, event)
        return found

    return asyncio.run(through_the_door())


def test_the_walk_reaches_every_event_and_lies_of_all_kinds_get_in(let_in: list[Event]) -> None:
    assert OF_AGENTS - {type(each) for each in let_in} == {NodeInDoubt}  # it has no text but its node's name
    assert len(let_in) > 1000


def test_a_machine_is_called_what_the_launcher_calls_it(let_in: list[Event]) -> None:
    assert {each.host for each in let_in if isinstance(each, NodeJoined)} == {OURS}

    async def without_a_machine() -> set[str]:
        """Of a key that is of no machine, an agent of an earlier version."""
        door, found = Door(""), set()
        for number, event in enumerate(with_each_text_replaced(NodeJoined, 1.0), 1):
            found |= {each.host for each in door.let_in(number, event)}
        return found

    assert asyncio.run(without_a_machine()) == {OURS, THEIRS}


def test_other_runs_and_the_scheduler_get_nothing_of_it(
    let_in: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path))

    async def remember() -> None:
        remembering = Remembering("r1")
        for number, event in enumerate(let_in, 1):
            host = event.host if isinstance(event, NodeJoined) else OURS
            members = {"n0": Member(node="n0", host=host, pid=1, role=Role.ACTIVE, slot=0)}
            remembering.note(Record(seq=number, at=time.time(), gen=0, event=event), State(members=members))
            if number % 100 == 0:  # as many as may wait
                await written(remembering)
        await written(remembering)

    async def written(remembering: Remembering) -> None:
        working = asyncio.create_task(remembering.work())
        await asyncio.sleep(0)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    asyncio.run(remember())
    known = Store().hosts(time.time())
    assert [each.host for each in known] == [OURS]
    assert all(each.at > time.time() - 90_000.0 for each in known[0].events)
    script = batch.script(msgspec.structs.replace(SCRIPT, exclude=tuple(MachineName(each.host) for each in known)))
    assert script == batch.script(SCRIPT)


@pytest.mark.parametrize("text", [each for each in TEXTS if each != THEIRS])
def test_what_is_not_a_name_is_refused_wherever_it_comes_from(text: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path))
    for field in ("exclude", "name"):
        with pytest.raises(ConfigError):
            msgspec.structs.replace(SCRIPT, **{field: (text,) if field == "exclude" else text})
    with pytest.raises(HealthError):
        Store().quarantine(MachineName(text), at=1.0, why="w", by="b")
    assert main(["node", "quarantine", "--why", "w", "--", text]) != 0
    assert Store().hosts(1.0) == []


def test_a_directory_of_runs_stays_on_its_line() -> None:
    with pytest.raises(ConfigError):
        msgspec.structs.replace(SCRIPT, runs="/home/a\nb")


def test_no_host_joins_under_what_is_not_a_name() -> None:
    shape = Shape(num_hosts=9, num_standby=0, nproc=1, program="x", everstep_version="x", torch_version="x")
    for join in with_each_text_replaced(Join, 1.0):
        why = objection(shape, (), msgspec.structs.replace(join, num_hosts=9))
        if not why:
            assert Host(join, 1).machine in (OURS, THEIRS)
            assert Host(join, 1).name.isprintable()
        assert why.isprintable()
        assert len(why) < 1000


def test_no_text_of_it_steers_a_terminal_or_a_page(
    let_in: list[Event], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    first = RunStarted(at=1.0, run="r1", spec=SPEC, everstep_version="0", policy="default")
    told = [each for each in let_in if event_sentence(each)]
    assert told
    with Journal.create(run / "journal.jsonl", Header(run="r1", everstep_version="0", policy={})) as journal:
        for number, event in enumerate((first, *told), 1):
            journal.append(Record(seq=number, at=float(number), gen=0, event=event))
    for verb in (["status"], ["incident", "ls"], ["status", "--json"], ["incident", "--json", "ls"]):
        assert main([*verb, str(run)]) == 0
        captured = capsys.readouterr()
        for line in (captured.out + captured.err).split("\n"):
            assert all(char.isprintable() or char == "\t" for char in line), line[:200]


class Seen(HTMLParser):
    """Tags and names of attributes of a document; raises nothing whatever it is."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def lied_to(run: Path) -> Opened:
    """A run with an incident for each text of a verdict and its decision, and each of TEXTS."""
    run.mkdir(mode=0o700)
    first = RunStarted(at=1.0, run="r1", spec=SPEC, everstep_version="0", policy="default")
    with Journal.create(run / "journal.jsonl", Header(run="r1", everstep_version="0", policy={})) as journal:
        journal.append(Record(seq=1, at=1.0, gen=0, event=first))
        for number, concluded in enumerate(with_each_text_replaced(Concluded, 1.0), 2):
            name, why = f"i{number}", concluded.why[:1000]
            actions = (
                IncidentOpened(incident=name, why=why),
                msgspec.structs.replace(concluded, incident=name),
                Refused(what=concluded.verdict.sentence[:1000], why=why),
                IncidentClosed(incident=name, outcome="dismissed", why=why),
            )
            event = NodeJoined(at=float(number), node="n0", host=OURS, pid=1)
            journal.append(Record(seq=number, at=float(number), gen=0, event=event, actions=actions))
    return open_run(None, str(run))


def test_no_text_of_a_verdict_becomes_markup_or_a_second_line_of_a_notice(tmp_path: Path) -> None:
    opened = lied_to(tmp_path / "run")
    incidents = list(opened.view.incidents.values())
    assert len(incidents) > 100
    honest = Seen(incident_html(incident_page(opened.view, incidents[0], opened.goodput), "r1"))
    for incident in incidents:
        page = incident_page(opened.view, incident, opened.goodput)
        seen = Seen(incident_html(page, "r1"))
        assert seen.tags <= honest.tags | {"pre"}, seen.tags - honest.tags
        assert seen.attributes <= honest.attributes, seen.attributes - honest.attributes
        code = r"^(`{3,})\n.*?^\1$|^    everstep .*?$"
        outside = re.sub(code, "", incident_markdown(page, "r1"), flags=re.DOTALL | re.MULTILINE)
        assert not re.search(r"(?<!\\)<", outside), outside
    messages = messages_of(opened.view)
    assert len(messages) == len(incidents)
    assert all(message.text.isprintable() and len(message.text) <= MAX_CHARS for message in messages)
