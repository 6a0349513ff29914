"""What a machine's past says about it, the file it is kept in, and the verb that shows it."""

import contextlib
import json
import os
import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep import health
from everstep.cli.main import main
from everstep.health.rules import DAY_S, HealthEvent, Kind, State, episodes_of, judge, points_of, score, why_not_readmit
from everstep.health.store import KEPT_PER_HOST, HealthError, Store
from everstep.linux.mounts import is_shared, mounts_of_this_process

FAULT = HealthEvent(
    host="n7", at=0.0, kind=Kind.ALERT, why="GPU fell off the bus", code="ES-G79", blame="machine", severity="fault",
    action="REBOOT_NODE",
)  # fmt: skip


def event(at: float, kind: Kind = Kind.INCIDENT, **fields) -> HealthEvent:
    return HealthEvent(**{"host": "n7", "at": at, "kind": kind, "why": "broke", "severity": "fault", **fields})


def day(number: float) -> float:
    return number * DAY_S


# -- rules -----------------------------------------------------------------------------------------------------------


def test_one_fault_is_suspect_and_fades():
    past = [event(0.0)]
    assert judge(past, 1.0).state is State.SUSPECT
    assert judge(past, day(7)).score == pytest.approx(0.5)
    assert judge(past, day(10)).state is State.HEALTHY


def test_the_third_fault_within_a_week_quarantines():
    past = [event(day(n)) for n in (0, 3, 6.9)]
    assert judge(past[:2], day(3)).state is State.SUSPECT
    judgement = judge(past, day(7))
    assert judgement.state is State.QUARANTINED
    assert "3 faults within 7 days" in judgement.why
    assert judge([event(day(n)) for n in (0, 4, 8, 12)], day(12)).state is State.SUSPECT, "further apart"


def test_time_does_not_end_a_quarantine():
    assert judge([event(day(n)) for n in (0, 1, 2)], day(400)).state is State.QUARANTINED


def test_what_must_be_replaced_is_quarantined_at_once():
    assert judge([event(0.0, action="REPLACE_NODE")], 1.0).state is State.QUARANTINED
    assert judge([event(0.0, action="REPLACE_NODE", severity="error")], 1.0).state is State.SUSPECT


def test_one_fault_told_three_times_counts_once():
    told = [event(0.0, Kind.ALERT), event(5.0, Kind.INCIDENT), event(6.0, Kind.EVICTION, severity="")]
    assert len(episodes_of(told)) == 1
    assert judge(told, 7.0).state is State.SUSPECT


def test_a_fault_that_goes_on_for_a_day_is_one_fault():
    told = [event(3000.0 * n, Kind.ALERT, code="ES-M23", severity="error") for n in range(29)]
    assert len(episodes_of(told)) == 1
    assert judge(told, told[-1].at).state is State.SUSPECT
    apart = [event(8000.0 * n, Kind.ALERT, code="ES-M23", severity="error") for n in range(3)]
    assert judge(apart, apart[-1].at).state is State.QUARANTINED, "it was gone in between, and came back"


def test_faults_of_the_network_count_half():
    past = [event(day(n), code="ES-IB09", blame="network") for n in range(6)]
    assert judge(past[:5], day(5)).state is State.SUSPECT
    assert judge(past, day(6)).state is State.QUARANTINED


@pytest.mark.parametrize("blame", ["user", "storage", "environment", "scheduler", "unknown"])
def test_what_is_not_the_machines_does_not_count(blame):
    past = [event(day(n), blame=blame) for n in (0, 1, 2, 3)]
    assert judge(past, day(3)).state is State.HEALTHY
    assert score(past, day(3)) == 0


def test_warnings_do_not_count():
    assert points_of(event(0.0, Kind.ALERT, severity="warning")) == 0


def test_a_passed_check_ends_suspicion_but_not_a_quarantine():
    suspect = [event(0.0), event(day(1), Kind.CHECK_PASSED)]
    assert judge(suspect, day(1)).state is State.HEALTHY
    out = [*(event(day(n)) for n in (0, 1, 2)), event(day(3), Kind.CHECK_PASSED)]
    assert judge(out, day(3)).state is State.QUARANTINED
    assert judge([*out, event(day(4), Kind.READMITTED)], day(4)).state is State.HEALTHY


def test_a_failed_check_counts():
    assert judge([event(0.0, Kind.CHECK_FAILED, severity="")], 1.0).state is State.SUSPECT


def test_a_repeat_offender_is_remembered_after_its_readmission():
    past = [event(day(n)) for n in (0, 1, 2)] + [event(day(3), Kind.READMITTED)]
    assert judge([*past, event(day(4))], day(4)).state is State.SUSPECT
    again = judge([*past, event(day(4)), event(day(5))], day(5))
    assert again.state is State.QUARANTINED, "two more are enough: the earlier three count half"
    fresh = [event(day(4)), event(day(5))]
    assert judge(fresh, day(5)).state is State.SUSPECT


def test_by_hand():
    past = [event(0.0, Kind.QUARANTINED, why="smells of smoke", severity="")]
    assert judge(past, 1.0).state is State.QUARANTINED
    assert judge(past, 1.0).why == "smells of smoke"
    assert why_not_readmit(past) == "no check has passed on it"
    assert why_not_readmit([*past, event(2.0, Kind.CHECK_PASSED)]) == ""
    assert "since its last fault" in why_not_readmit([*past, event(2.0, Kind.CHECK_PASSED), event(3.0)])


HISTORIES = st.lists(
    st.tuples(
        st.floats(0, day(30)), st.sampled_from(list(Kind)), st.sampled_from(["fault", "error", "warning", ""]),
        st.sampled_from(["machine", "network", "user", ""]), st.sampled_from(["REPLACE_NODE", "REBOOT_NODE", ""]),
    ),
    max_size=25,
)  # fmt: skip


def past_of(history) -> list[HealthEvent]:
    made = [event(at, kind, severity=sev, blame=blame, action=act) for at, kind, sev, blame, act in history]
    return sorted(made, key=lambda one: one.at)


@given(HISTORIES, st.floats(0, day(60)))
def test_suspicion_never_grows_with_time_and_time_never_quarantines(history, later):
    past = past_of(history)
    end = day(30)
    assert score(past, end + later) <= score(past, end) + 1e-9
    was, is_now = judge(past, end).state, judge(past, end + later).state
    assert is_now in (was, State.HEALTHY)
    assert (was is State.QUARANTINED) == (is_now is State.QUARANTINED)


@given(HISTORIES)
def test_only_a_readmission_ends_a_quarantine(history):
    past, before = past_of(history), State.HEALTHY
    for number, one in enumerate(past, 1):
        state = judge(past[:number], one.at).state
        if before is State.QUARANTINED and state is not State.QUARANTINED:
            assert one.kind is Kind.READMITTED
        before = state


# -- the file --------------------------------------------------------------------------------------------------------


def test_what_is_recorded_is_found_again(tmp_path):
    store = Store(tmp_path / "deep" / "nodes.db")
    assert store.hosts(0.0) == []
    assert store.host("n7", 0.0) is None
    store.record(FAULT)
    found = store.host("n7", 1.0)
    assert found.events == (FAULT,)
    assert (found.state, found.since, found.by) == (State.SUSPECT, 0.0, "everstep")
    store.record(event(day(1), host="n8"))
    assert [one.host for one in store.hosts(day(1))] == ["n7", "n8"]
    assert store.host("n7", day(60)).since is None, "suspicion faded; nothing happened"


def test_readmission(tmp_path):
    store = Store(tmp_path / "nodes.db")
    store.quarantine("n7", at=10.0, why="smells of smoke", by="ann")
    with pytest.raises(HealthError, match="no check has passed on it"):
        store.readmit("n7", at=11.0, by="ann")
    with pytest.raises(HealthError, match="no check has passed on it"):
        store.readmit("n7", at=11.0, by="ann", why="I want it")
    store.record(event(12.0, Kind.CHECK_PASSED, severity=""))
    store.readmit("n7", at=11.5, by="ann")
    found = store.host("n7", 13.0)
    assert found.state is State.HEALTHY
    assert found.by == "ann"
    with pytest.raises(HealthError, match="not quarantined"):
        store.readmit("n7", at=14.0, by="ann")
    with pytest.raises(HealthError, match="nothing is on record about n9"):
        store.readmit("n9", at=14.0, by="ann")
    store.quarantine("n7", at=20.0, why="again", by="ann")
    store.readmit("n7", at=21.0, by="ann", why="was a false alarm", force=True)
    assert store.host("n7", 22.0).events[-1].why == "forced: was a false alarm"


def test_the_past_is_bounded(tmp_path):
    store = Store(tmp_path / "nodes.db")
    for number in range(KEPT_PER_HOST + 5):
        store.record(event(float(number), Kind.ALERT, severity="warning"))
    events = store.host("n7", 1e6).events
    assert (len(events), events[0].at) == (KEPT_PER_HOST, 5.0)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b"this is no database" * 100),
        lambda path: path.write_bytes(os.urandom(8192)),
        lambda path: path.mkdir(),
        lambda path: os.mkfifo(path),
        lambda path: _other_version(path),
        lambda path: _cut(path),
    ],
    ids=["text", "noise", "folder", "fifo", "other version", "cut"],
)
def test_a_file_that_cannot_be_used_stops_nobody_and_is_said_once(tmp_path, spoil, caplog):
    path = tmp_path / "nodes.db"
    spoil(path)
    health._said.clear()

    def try_it() -> None:
        for number in range(5):
            assert not health.record(HealthEvent(host="n7", at=float(number), kind=Kind.EVICTION, why="broke"), path)
            assert health.state_of("n7", 1.0, path) is None

    assert takes_less(5.0, try_it)
    said = [record.message for record in caplog.records]
    assert 1 <= len(said) <= 2, said
    assert str(path) in said[0]


def takes_less(seconds: float, work: Callable[[], None]) -> bool:
    """The best of three tries: a busy machine may hold up one of them."""
    for _ in range(3):
        began = time.monotonic()
        work()
        if time.monotonic() - began < seconds:
            return True
    return False


def _other_version(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()


def _cut(path: Path) -> None:
    store = Store(path)
    for number in range(50):
        store.record(event(float(number), why="x" * 500))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2 + 100])


def test_the_log_ahead_is_only_used_on_a_disk_of_this_machine(tmp_path):
    mounts = (
        "/dev/sda / ext4 rw 0 0\nserver:/h /home nfs4 rw 0 0\ntmpfs /home/my\\040disk tmpfs rw 0 0\nx /f fuse.s3 rw 0 0"
    )
    assert not is_shared(Path("/var/nodes.db"), mounts)
    assert is_shared(Path("/home/ann/nodes.db"), mounts)
    assert not is_shared(Path("/home/my disk/nodes.db"), mounts)
    assert not is_shared(Path("/homes/nodes.db"), mounts)
    assert is_shared(Path("/f/nodes.db"), mounts)
    assert is_shared(Path("/var/nodes.db"), ""), "unknown is not local"
    path = tmp_path / "nodes.db"
    Store(path).record(FAULT)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    assert mode == ("delete" if is_shared(path, mounts_of_this_process()) else "wal")


def test_a_locked_file_is_waited_for_only_shortly(tmp_path, caplog):
    path = tmp_path / "nodes.db"
    health._said.clear()
    assert health.passed("n7", at=1.0, why="check", path=path)
    holder = sqlite3.connect(path, isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")

        def try_it() -> None:
            assert not health.passed("n7", at=2.0, why="check", path=path)

        assert takes_less(2.0, try_it)
    finally:
        holder.close()
    assert "another process holds it" in caplog.text
    assert health.passed("n7", at=3.0, why="check", path=path)
    assert len(health.state_of("n7", 4.0, path).events) == 2


# -- the verb --------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path))
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


def test_node_without_a_past(home, capsys):
    assert main(["node", "ls"]) == 0
    assert "Nothing is on record" in capsys.readouterr().out
    assert main(["node", "ls", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["node", "show", "n7"]) == 1
    assert "nothing is on record about n7" in capsys.readouterr().err
    assert not (home / "nodes.db").exists(), "reading makes no file"


def test_node_verbs(home, capsys):
    now = time.time()
    for event in (
        HealthEvent(
            host="n7", at=now - 60, kind=Kind.EVICTION, code="ES-G79", why="GPU 3 fell off\x1b[31m the bus", run="r1"
        ),
        HealthEvent(
            host="n8", at=now - 9 * DAY_S, kind=Kind.ALERT, code="ES-M30", why="memory low", severity="warning"
        ),
    ):
        health.record(event)
    assert main(["node", "quarantine", "n9", "--why", "smells of smoke"]) == 0
    assert capsys.readouterr().out == "n9 is quarantined: smells of smoke\n"
    assert main(["node", "ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["n9", "quarantined"], ["n7", "suspect"], ["n8", "healthy"]]
    assert main(["node", "show", "n7"]) == 0
    page = capsys.readouterr().out
    assert "n7 is suspect" in page
    assert "ES-G79" in page
    assert "\x1b[31m" not in page
    assert main(["node", "readmit", "n9"]) == 1
    assert "no check has passed on it" in capsys.readouterr().err
    assert main(["node", "readmit", "n9", "--force"]) == 2
    assert "--why is empty" in capsys.readouterr().err
    health.passed("n9", at=time.time(), why="everstep check --quick")
    assert main(["node", "readmit", "n9", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], [one["kind"] for one in told["events"]]) == (
        "healthy", ["quarantined", "check passed", "readmitted"],
    )  # fmt: skip


def test_json_keys_are_documented(home, capsys):
    health.passed("n7", at=1.0, why="check")
    assert main(["node", "show", "n7", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    page = (Path(__file__).parents[3] / "docs" / "nodes.md").read_text().split("## JSON")[1]
    assert {*told, *told["events"][0]} <= set(re.findall(r"`([a-z_]+)`", page))


def test_node_with_a_damaged_store_says_what_to_do(home, capsys):
    (home / "nodes.db").write_bytes(b"no database at all" * 50)
    assert main(["node", "ls"]) == 1
    assert "move it away to begin a new one" in capsys.readouterr().err
