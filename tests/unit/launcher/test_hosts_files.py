"""Files of other hosts: sent as they grow, written where they belong, and nowhere else."""

import contextlib
import os
from pathlib import Path

import pytest

from everstep.agent.tracing.files import SENT, name_of
from everstep.engines.hosts import files
from everstep.engines.hosts.files import Received
from everstep.engines.hosts.places import Places
from everstep.errors import WireError
from everstep.journal.format import decode_record
from everstep.launcher.joining import sending
from everstep.launcher.joining.sending import Sending
from everstep.model.actions import StartWorkers
from everstep.wire.joining import PIECE_BYTES, Piece

NODES = frozenset({"n1"})
PLACES = {0: "n0", 1: "n1", 3: "n1", 9: "n1"}
LOG = "logs/gen-0/rank-3/stdout.log"


@pytest.fixture
def there(tmp_path):
    """The other host's directory, with the output of one rank."""
    folder = tmp_path / "there" / "logs" / "gen-0" / "rank-3"
    folder.mkdir(parents=True)
    (folder / "stdout.log").write_bytes(b"one\n")
    (folder / "stderr.log").symlink_to("stdout.log")
    return tmp_path / "there"


@pytest.fixture
def here(tmp_path):
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def node_of(_generation, rank):
    return PLACES.get(rank)


def carry(sending, received, session="s1"):
    return {piece.path: received.take(session, NODES, piece) for piece in sending.pieces()}


def test_a_log_arrives_as_it_grows_and_its_other_name_too(there, here):
    sender, received = Sending(there), Received(here, node_of)
    carry(sender, received)
    assert (here / LOG).read_bytes() == b"one\n"
    assert (here / "logs/gen-0/rank-3/stderr.log").readlink().name == "stdout.log"
    with (there / LOG).open("ab") as file:
        file.write(b"two\n")
    assert carry(sender, received) == {LOG: 8}
    assert carry(sender, received) == {}
    assert (here / LOG).read_bytes() == b"one\ntwo\n"
    assert received.is_elsewhere(0, 3)
    assert not received.is_elsewhere(1, 3)


def test_what_did_not_arrive_is_sent_again_after_a_reconnect(there, here):
    sender, received = Sending(there), Received(here, node_of)
    list(sender.pieces())  # into a connection that broke
    sender.start_over(received.of("s1"))
    assert carry(sender, received)[LOG] == 4


def test_a_log_that_grows_faster_than_it_is_sent_goes_on_near_its_end(there, here):
    (there / LOG).write_bytes(b"x" * (3 * sending.BACKLOG_BYTES) + b"the end\n")
    sender, received = Sending(there), Received(here, node_of)
    carry(sender, received)
    found = (here / LOG).read_bytes()
    assert found.endswith(b"x" * 100 + b"the end\n")
    assert len(found) == (there / LOG).stat().st_size
    assert (here / LOG).stat().st_blocks * 512 < 2 * PIECE_BYTES


def test_evidence_is_there_as_a_whole_or_not_at_all(there, here):
    name = "evidence/i3/gen-2/rank-1.json"
    (there / name).parent.mkdir(parents=True)
    (there / name).write_bytes(b"{" + b" " * (PIECE_BYTES + 10) + b"}")
    sender, received = Sending(there), Received(here, node_of)
    seen = []
    for piece in sender.pieces():
        seen.append((here / name).exists())
        received.take("s1", NODES, piece)
    assert not any(seen[1:2])
    assert (here / name).read_bytes() == (there / name).read_bytes()
    assert carry(sender, received) == {}


@pytest.mark.parametrize(
    "path",
    [
        "journal.jsonl",
        "secret",
        "../x",
        "/etc/passwd",
        "logs/gen-0/rank-0/../../../token",
        "logs/gen-0/rank-0/stdout.log\n",
        "evidence/../gen-0/rank-0.json",
        "evidence/i1/gen-0/rank-0.json.part",
        "nodes/n0/agent.log",  # another host's node
        "logs/gen-0/rank-0/stdout.log",  # ranks of this host, and of none
        "errors/gen-0/rank-0.json",
        "evidence/i1/gen-0/rank-0-flight.json",
        "errors/gen-0/rank-2.json",
        "evidence/x/gen-0/rank-1.json",
        "nodes/n1/credentials.json",
        "code/start/train.py",
    ],
)
def test_a_host_writes_nothing_else(here, path):
    with pytest.raises(WireError, match="may not write"):
        Received(here, node_of).take("s1", NODES, Piece(path=path, at=0, data=b"x", is_whole=True))
    assert list(here.iterdir()) == []


def test_a_file_is_its_first_hosts(here):
    received = Received(here, node_of)
    received.take("s1", NODES, Piece(path=LOG, at=0, data=b"honest"))
    with pytest.raises(WireError, match="another host's"):
        received.take("s2", NODES, Piece(path=LOG, at=0, data=b"lies"))
    assert (here / LOG).read_bytes() == b"honest"


def test_a_link_that_lies_there_is_not_followed(here, tmp_path):
    target = tmp_path / "target"
    target.write_text("kept")
    (here / LOG).parent.mkdir(parents=True)
    (here / LOG).symlink_to(target)
    with pytest.raises(OSError):
        Received(here, node_of).take("s1", NODES, Piece(path=LOG, at=0, data=b"x"))
    assert target.read_text() == "kept"


def test_a_host_has_a_limit(here, monkeypatch):
    most = files.FILE_BYTES + 10
    monkeypatch.setattr(files, "MAX_HOST_BYTES", most)
    received = Received(here, node_of)
    received.take("s1", NODES, Piece(path=LOG, at=0, data=b"12345678"))
    with pytest.raises(WireError, match=f"more than {most} bytes"):
        received.take("s1", NODES, Piece(path=LOG, at=8, data=b"12345678"))
    for at, data in ((-1, b"x"), (1 << 50, b"x"), (0, b"x" * (PIECE_BYTES + 1))):
        with pytest.raises(WireError):
            received.take("s2", NODES, Piece(path="errors/gen-0/rank-9.json", at=at, data=data))


def test_leaving_and_joining_again_resets_no_limit(here, monkeypatch):
    monkeypatch.setattr(files, "MAX_HOST_BYTES", 10 * files.FILE_BYTES)
    received, taken = Received(here, lambda generation, rank: "n1"), []
    for number in range(200):  # under a new session each time, and from another address of its own network
        address = f"2001:db8::{number:x}" if number < 100 else f"10.0.0.{number}"
        with contextlib.suppress(WireError):
            piece = Piece(path=f"logs/gen-{number}/rank-0/stdout.log", at=0, data=b"")
            received.take(f"s{number}", NODES, piece, address)
            taken.append(number)
    assert len([each for each in taken if each < 100]) == 10
    assert len(taken) == 10 * files.LEAST_HOSTS, "with many addresses all together have a limit"


def test_a_hole_counts_its_share_and_one_of_a_tebibyte_is_refused(here):
    received = Received(here, node_of)
    with pytest.raises(WireError):
        received.take("s1", NODES, Piece(path=LOG, at=(1 << 40) - 1, data=b"x"))
    assert received.take("s1", NODES, Piece(path=LOG, at=1 << 30, data=b"x")) == (1 << 30) + 1
    with contextlib.suppress(WireError):
        for number in range(2, 1000):
            received.take("s1", NODES, Piece(path=LOG, at=number << 30, data=b"x"))
    size = (here / LOG).stat().st_size
    assert files.MAX_HOST_BYTES < size <= files.HOLE_SHARE * files.MAX_HOST_BYTES + 1


def test_who_may_write_what_a_rank_wrote_is_in_the_journal(tmp_path):
    """The golden one: rank 0 on n0 and rank 1 on n1, until n1 is replaced."""
    whole = (Path(__file__).parents[2] / "golden/journal.jsonl").read_bytes()
    journal = tmp_path / "journal.jsonl"
    places = Places(journal)
    assert places.node_of(0, 0) is None
    starts = [
        record for line in whole.splitlines()[1:] for record in [decode_record(line)] if "StartWorkers" in str(record)
    ]
    told = {(a.generation, a.first_rank): a.node for r in starts for a in r.actions if isinstance(a, StartWorkers)}
    for end in range(0, len(whole), 997):  # it is read while it is written
        journal.write_bytes(whole[:end])
        places.node_of(99, 0)
    journal.write_bytes(whole)
    assert told
    assert {key: places.node_of(*key) for key in told} == told
    assert places.node_of(0, 99) is None


def test_empty_files_count_as_well(here, monkeypatch):
    monkeypatch.setattr(files, "MAX_HOST_BYTES", 10 * files.FILE_BYTES)
    received = Received(here, lambda generation, rank: "n1")
    for number in range(10):
        received.take("s1", NODES, Piece(path=f"logs/gen-{number}/rank-0/stdout.log", at=0, data=b""))
    with pytest.raises(WireError, match="more than"):
        received.take("s1", NODES, Piece(path="logs/gen-10/rank-0/stdout.log", at=0, data=b""))
    assert len(received.of("s1")) == 10


@pytest.mark.parametrize("name", ["errors/gen-0/rank-3.json", "evidence/i1/gen-0/rank-3.json", LOG])
def test_a_pipe_where_a_rank_writes_holds_nobody_up(there, name):
    path = there / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert [piece.path for piece in Sending(there).pieces()] in (
        [],
        ["logs/gen-0/rank-3/stderr.log"],
        [LOG, LOG.replace("out", "err")],
    )
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert b"root" not in b"".join(piece.data for piece in Sending(there).pieces())


def test_names_without_end_are_not_all_looked_at(there, monkeypatch):
    monkeypatch.setattr(sending, "MAX_NAMES", 20)
    folder = there / "errors/gen-0"
    folder.mkdir(parents=True)
    for number in range(50):
        (folder / f"x{number}.json").write_text("{}")
    assert len(list(Sending(there).pieces())) <= 22


TRACE = "traces/i2-gen-2-rank-3.json"


def test_a_trace_arrives_as_a_whole_also_after_a_connection_that_broke_in_its_midst(there, here):
    (there / "traces").mkdir()
    content = os.urandom(3 * PIECE_BYTES + 7)
    (there / TRACE).write_bytes(content)
    sender, received = Sending(there), Received(here, node_of)
    for piece in [each for each in sender.pieces() if each.path == TRACE][:2]:
        received.take("s1", NODES, piece)
    assert not (here / TRACE).exists()
    sender.start_over({path: upto for path, upto in received.of("s1").items() if path != TRACE})
    carry(sender, received)
    assert (here / TRACE).read_bytes() == content
    assert carry(sender, received) == {}


def test_a_trace_that_grows_while_it_is_sent_is_sent_again(there, here):
    """The node writes it under its name."""
    (there / "traces").mkdir()
    (there / TRACE).write_bytes(b"half")
    sender, received = Sending(there), Received(here, node_of)
    carry(sender, received)
    with (there / TRACE).open("ab") as file:
        file.write(b" and half")
    carry(sender, received)
    assert (here / TRACE).read_bytes() == b"half and half"


def test_what_somebody_recorded_on_the_other_host_for_himself_stays_there(there, here):
    """The first host would not take it, and end the connection over it."""
    (there / "traces").mkdir()
    for name in ("rank-3-20261124T025911Z.json", ".i2-rank-3-flight.part", "notes.json"):
        (there / "traces" / name).write_bytes(b"{}")
    assert not [each.path for each in Sending(there).pieces() if each.path.startswith("traces/")]


@pytest.mark.parametrize(
    "name",
    [
        "traces/i2-gen-2-rank-0.json",  # another host's rank
        "traces/rank-3-20261124T025911Z.json",
        "traces/i2-gen-2-rank-3.json.part",
        "traces/../i2-gen-2-rank-3.json",
        "traces/x/i2-gen-2-rank-3.json",
        "traces/i2-gen-2-rank-3.json\n",
    ],
)
def test_a_host_writes_traces_of_its_own_ranks_only(here, name):
    with pytest.raises(WireError, match="may not write"):
        Received(here, node_of).take("s1", NODES, Piece(path=name, at=0, data=b"{}", is_whole=True))


def test_both_ends_mean_the_same_names():
    name = name_of("t12", 4, 3)
    assert SENT.fullmatch(name)
    assert Received(Path("/nowhere"), node_of)._node(f"traces/{name}") == "n1"
