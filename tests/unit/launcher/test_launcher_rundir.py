"""Which run directory can be used, and what of a new command counts in a run that goes on."""

import os
import stat
from pathlib import Path

import msgspec
import pytest

from everstep.controller.record.ledger import Ledger
from everstep.controller.record.spec_file import load_spec
from everstep.errors import ConfigError, JournalError, RunLockedError
from everstep.journal.beside import continued
from everstep.launcher.arguments import options
from everstep.launcher.arguments.settings import resolve
from everstep.launcher.rundir.rundir import prepare
from everstep.model.events import StopRequested
from everstep.model.spec import Mode, RunSpec


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def prepare_run(*flags, nproc=2, slots=1):
    settings = resolve(options.parse([*flags, "train.py"]), {})
    spec = RunSpec(
        program="train.py",
        num_slots=slots,
        nproc_per_node=nproc,
        mode=settings.mode,
        num_standby=settings.num_standby,
        log_dir=settings.log_dir,
    )
    prepared = prepare(settings, spec)
    os.close(prepared.lock_fd)
    return prepared


def begin(prepared):
    return Ledger.open(prepared.path, prepared.file, pid=1, at=100.0)


def test_a_new_run_is_registered_and_its_token_is_private(home):
    prepared = prepare_run()
    assert prepared.path == home / "runs" / prepared.file.run
    assert (home / "runs" / "latest").resolve() == prepared.path
    assert stat.S_IMODE((prepared.path / "token").stat().st_mode) == 0o600
    assert load_spec(prepared.path) == prepared.file


def test_rdzv_id_is_the_runs_id(home):
    assert prepare_run("--rdzv-id", "job-7").path == home / "runs" / "job-7"
    assert prepare_run("--rdzv-id", "../job 8").path == home / "runs" / "job-8"


def test_an_id_can_be_used_again(home):
    """A run that is over, or in use, keeps its directory; one that did not end is gone on with."""
    first = prepare_run("--rdzv-id", "job77")
    finish(begin(first))
    second = prepare_run("--rdzv-id", "job77")
    assert (second.file.run, second.file.attempt) == ("job77.2", 1)
    begin(second).close()
    again = prepare_run("--rdzv-id", "job77")
    assert (again.file.run, again.file.attempt) == ("job77.2", 2)
    ledger = begin(again)
    third = prepare_run("--rdzv-id", "job77")
    assert third.path == home / "runs" / "job77.3"
    ledger.close()


def test_another_program_with_the_same_id_is_another_run(home):
    begin(prepare_run("--rdzv-id", "job77")).close()
    assert prepare_run("--rdzv-id", "job77", nproc=4).file.run == "job77.2"


def test_two_launchers_that_would_meet_do_not_become_two_jobs(home):
    """Under torchrun the second one would join the first."""
    ledger = begin(prepare_run("--rdzv-id", "job77", "--nnodes", "1:2"))
    with pytest.raises(RunLockedError):
        prepare_run("--rdzv-id", "job77", "--nnodes", "1:2")
    ledger.close()


def finish(ledger):
    ledger.record(StopRequested(at=101.0, why="SIGTERM", signal=15), at=101.0)
    ledger.close()


def test_a_finished_run_is_not_touched(tmp_path):
    first = prepare_run("--run-dir", str(tmp_path / "d"))
    finish(begin(first))
    before = (tmp_path / "d" / "spec.json").read_bytes()
    with pytest.raises(ConfigError, match=r"is over \(stopped\)"):
        prepare_run("--run-dir", str(tmp_path / "d"))
    assert (tmp_path / "d" / "spec.json").read_bytes() == before


def test_an_unfinished_run_goes_on_as_it_was_started(tmp_path):
    begin(prepare_run("--run-dir", str(tmp_path), "--mode", "advise", "--max-restarts", "3")).close()
    again = prepare_run("--run-dir", str(tmp_path), "--standby", "1")
    assert again.file.attempt == 2
    assert again.file.spec.mode is Mode.ADVISE
    assert (again.file.spec.num_standby, again.file.policy.max_restarts) == (0, 3)
    assert [note.split()[0] for note in again.notes] == ["mode", "standby", "the"], "each kept setting is said"
    begin(again).close()
    assert prepare_run("--run-dir", str(tmp_path)).file.attempt == 3


@pytest.mark.parametrize(("slots", "nproc"), [(1, 4), (2, 2), (2, 1)])
def test_another_shape_is_refused_with_both_sizes(tmp_path, slots, nproc):
    begin(prepare_run("--run-dir", str(tmp_path))).close()
    with pytest.raises(ConfigError, match=rf"2 \(1 nodes x 2\), asked for is {slots * nproc} \({slots} nodes"):
        prepare_run("--run-dir", str(tmp_path), slots=slots, nproc=nproc)


def test_two_launchers_cannot_share_a_directory(tmp_path):
    settings = resolve(options.parse(["--run-dir", str(tmp_path), "train.py"]), {})
    first = prepare(settings, RunSpec(program="train.py"))
    try:
        with pytest.raises(RunLockedError, match="in use by another `everstep run`") as caught:
            prepare(settings, RunSpec(program="train.py"))
        assert caught.value.exit_code == 5
    finally:
        os.close(first.lock_fd)
    os.close(prepare(settings, RunSpec(program="train.py")).lock_fd)


def test_a_live_controller_holds_the_directory(tmp_path):
    ledger = begin(prepare_run("--run-dir", str(tmp_path)))
    with pytest.raises(RunLockedError, match=f"process {os.getpid()} writes its journal"):
        prepare_run("--run-dir", str(tmp_path))
    ledger.close()


def test_a_run_that_another_host_goes_on_with_is_not_begun_again_beside_it(tmp_path):
    begun, there = tmp_path / "begun", tmp_path / "there"
    begin(prepare_run("--run-dir", str(begun))).close()
    led = begin(prepare_run("--run-dir", str(there)))
    continued.point(begun, there)
    with pytest.raises(RunLockedError, match=f"another host continues with this run, in {there}"):
        prepare_run("--run-dir", str(begun))
    led.close()
    prepare_run("--run-dir", str(begun))
    assert not continued.is_elsewhere(begun)


def test_a_newer_journal_is_refused_and_left_alone(tmp_path):
    begin(prepare_run("--run-dir", str(tmp_path))).close()
    path = tmp_path / "journal.jsonl"
    newer = path.read_bytes().replace(b'"v":1', b'"v":2')
    path.write_bytes(newer)
    with pytest.raises(JournalError, match="schema version 2"):
        prepare_run("--run-dir", str(tmp_path))
    assert path.read_bytes() == newer


def test_the_log_directory_gets_a_folder_of_the_run(tmp_path):
    prepared = prepare_run("--log-dir", str(tmp_path / "logs"))
    (published,) = (Path(folder) for folder in prepared.file.spec.published_logs)
    assert published.is_dir()
    assert published.parent == tmp_path / "logs"
    assert published.name.startswith(f"{prepared.file.run}_")
    assert msgspec.structs.asdict(prepared.file.spec)["program"] == "train.py"


@pytest.mark.parametrize(("mode", "is_shown"), [(0o600, True), (0o640, False), (0o644, False), (None, True)])
def test_the_link_holds_its_token_unless_other_users_may_read_what_is_printed(tmp_path, mode, is_shown):
    from everstep.launcher.run import _token

    prepared = prepare_run()
    ends = os.pipe() if mode is None else [os.open(tmp_path / "slurm-7.out", os.O_WRONLY | os.O_CREAT, 0o600)]
    try:
        if mode is not None:
            os.fchmod(ends[-1], mode)
        told = _token(prepared, ends[-1])
        assert (prepared.keys.read_token in told) == is_shown
        assert is_shown or str(prepared.path / "token-read") in told
    finally:
        for fd in ends:
            os.close(fd)
