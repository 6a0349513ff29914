"""`everstep check` as a process: hangs, crashes, Ctrl-C, peers. Real processes, real signals, real sockets."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from lateness import Lateness

from everstep.preflight import judge
from everstep.preflight.registry import BY_NAME
from everstep.preflight.result import Judgement, Report
from everstep.preflight.running import processes, runner
from everstep.preflight.settings import Settings

COMMAND = [sys.executable, "-m", "everstep", "check"]


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    return {**os.environ, "EVERSTEP_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path), "NO_COLOR": "1"}


def check(environment, tmp_path, *arguments: str, **more) -> tuple[int, Report, str]:
    """Exit code, report, standard error."""
    done = subprocess.run(
        [*COMMAND, "--json", *arguments], env=environment, cwd=tmp_path, capture_output=True, timeout=120, **more
    )
    assert done.stdout, done.stderr.decode()
    return done.returncode, msgspec.json.decode(done.stdout, type=Report), done.stderr.decode()


def of(report: Report, name: str):
    return next(result for result in report.results if result.name == name)


def wait_for(what: Callable[[], object], limit_s: float = 60.0) -> object:
    deadline = time.monotonic() + limit_s
    while not (found := what()):
        assert time.monotonic() < deadline, "nothing came of it"
        time.sleep(0.02)
    return found


def in_session_of(pid: int) -> list[int]:
    """Living processes whose session was begun by this one or by a child of it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                cells = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if pid in (int(cells[1]), int(cells[3])) and cells[0] not in "ZX":
                found.append(int(entry.name))
    return found


def test_inventory_of_this_node(environment, tmp_path):
    names = "cpu,memory,kernel,software,container,devices,pci,nic,infiniband,storage,sensors,gpu"
    code, report, progress = check(environment, tmp_path, "--only", names)
    assert len(report.results) >= 200
    assert code == (1 if report.count(Judgement.BAD) else 0)
    assert of(report, "cpu.count").value == os.cpu_count()
    assert len({result.name for result in report.results}) == len(report.results)
    for result in report.results:
        assert (result.verdict is Judgement.UNSUPPORTED) == (result.value is None), result
        assert result.why or result.verdict is not Judgement.UNSUPPORTED, result
    assert progress.count("results in") + progress.count("result in") == 12


def test_a_check_that_hangs_is_killed_and_named_and_the_others_go_on(tmp_path, monkeypatch):
    root = tmp_path / "root"
    (root / "proc").mkdir(parents=True)
    os.mkfifo(root / "proc/meminfo")  # opening it blocks for ever, as a file of a dead driver does
    fast = msgspec.structs.replace(BY_NAME["memory"], quick_limit_s=1.0)
    monkeypatch.setitem(BY_NAME, "memory", fast)
    before = set(in_session_of(os.getpid()))
    found = list(runner.run_checks(["cpu", "memory", "pci"], Settings(root=str(root)), lambda _: None))
    hung = next(result for result in found if result.name == "memory.check")
    assert (hung.verdict, hung.value) == (Judgement.BAD, "hung")
    assert "within 1 s" in hung.why
    assert {"cpu", "pci"} <= {result.category for result in found}
    assert set(in_session_of(os.getpid())) == before


def test_a_check_whose_process_dies_is_named_and_the_others_go_on(tmp_path):
    killed: list[int] = []

    def kill_at_pci(progress: runner.Progress) -> None:
        children = [pid for pid in in_session_of(os.getpid()) if "preflight.running.child" in command_of(pid)]
        if progress.check.name == "bandwidth" and not killed and children and not progress.ended:
            os.kill(children[0], signal.SIGKILL)
            killed.append(children[0])

    found = list(runner.run_checks(["bandwidth", "pci"], Settings(), kill_at_pci))
    died = next(result for result in found if result.name == "bandwidth.check")
    assert killed
    assert (died.verdict, died.value) == (Judgement.BAD, "died")
    assert "SIGKILL" in died.why
    assert any(result.name == "pci.count" or result.category == "pci" for result in found)


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_forked_measurements_that_fail_say_how():
    def boom():
        raise ValueError("no")

    works = [lambda: {"x": 1}, boom, lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: time.sleep(600) or {}]
    begun = time.monotonic()
    with Lateness() as late:
        answers = processes.run_forked(works, limit_s=6.0)  # enough for forks that a busy machine starts late
    assert time.monotonic() - begun < 20 + late.seconds
    assert answers[0] == {"x": 1}
    assert [getattr(answer, "why", "") for answer in answers[1:]] == [
        "ValueError: no",
        "killed by SIGKILL",
        "no answer within 6 s",
    ]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_however_it_ends_nothing_is_left(environment, tmp_path, sent):
    folder = tmp_path / "disk"
    folder.mkdir()
    process = subprocess.Popen(
        [*COMMAND, "--full", "--json", "--only", "compute,disk", "--disk-path", str(folder)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with process:
        # Deep inside: the child of the check has children of its own.
        child = wait_for(lambda: next((pid for pid in in_session_of(process.pid) if pid != process.pid), 0))
        wait_for(lambda: [pid for pid in in_session_of(child) if pid != child])
        family = {child, *in_session_of(child)}
        process.send_signal(sent)
        out, _ = process.communicate(timeout=60)
    wait_for(lambda: not [pid for pid in family if "everstep" in command_of(pid)])
    assert list(folder.iterdir()) == []
    if sent == signal.SIGINT:
        assert process.returncode == 130
        assert msgspec.json.decode(out, type=Report).interrupted
    else:
        assert process.returncode == -sent


def test_a_peer_is_measured_and_one_that_is_not_there_is_named(environment, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = closed.getsockname()[1]
    environment = {**environment, "EVERSTEP_CHECK_TOKEN": "secret", "PYTHONUNBUFFERED": "1"}
    serving = subprocess.Popen([*COMMAND, "--serve", "0"], env=environment, stdout=subprocess.PIPE, text=True)
    with serving:
        port = serving.stdout.readline().split(";")[0].rpartition(":")[2]
        good, bad = f"127.0.0.1:{port}", f"127.0.0.1:{nobody}"
        try:
            with Lateness() as late:
                code, report, _ = check(environment, tmp_path, "--only", "network", "--peers", f"{good},{bad}")
            stranger = {**environment, "EVERSTEP_CHECK_TOKEN": "guess"}
            refused_code, refused, _ = check(stranger, tmp_path, "--only", "network", "--peers", good)
        finally:
            serving.send_signal(signal.SIGINT)
        assert serving.wait(timeout=60) == 0
    assert (code, refused_code) == (1, 1)
    assert of(report, f"network.peer.{good}.send_bandwidth").value > 0
    trip = of(report, f"network.peer.{good}.rtt_p50_s")
    assert trip.value > 0
    assert trip.verdict is Judgement.OK or late.seconds > 0.2, "OK is said of a machine that is in time"
    assert trip.verdict is judge.by_limits([msgspec.structs.replace(trip, verdict=Judgement.NOTED)])[0].verdict
    assert of(report, f"network.peer.{bad}.reachable").verdict is Judgement.BAD
    assert "wrong token" in of(refused, f"network.peer.{good}.reachable").why


HUNG_UP = {errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN}


def throw(link: socket.socket, garbage: bytes) -> None:
    """Send it all and wait for the end; who serves may hang up at the first wrong byte, before this side is done."""
    try:
        link.sendall(garbage)
        link.shutdown(socket.SHUT_WR)
        while link.recv(4096):
            pass
    except OSError as error:
        if error.errno not in HUNG_UP:
            raise


def test_garbage_does_not_end_whoever_serves(environment, tmp_path):
    environment = {**environment, "PYTHONUNBUFFERED": "1"}
    serving = subprocess.Popen([*COMMAND, "--serve", "0"], env=environment, stdout=subprocess.PIPE, text=True)
    with serving:
        try:
            port = int(serving.stdout.readline().split(";")[0].rpartition(":")[2])
            for garbage in (b"", b"\xff" * 5000, b"GET / HTTP/1.1\r\n\r\n", b"a b c\n", b"\n" * 100, b"x y 1e999\n"):
                with socket.create_connection(("127.0.0.1", port), timeout=60) as link:
                    link.settimeout(60)
                    throw(link, garbage)
            code, report, _ = check(environment, tmp_path, "--only", "network", "--peers", f"127.0.0.1:{port}")
        finally:
            serving.send_signal(signal.SIGINT)
    assert of(report, f"network.peer.127.0.0.1:{port}.reachable").value is True
    assert code == (1 if report.count(Judgement.BAD) else 0)


def test_listening_for_others_needs_a_token(environment, tmp_path):
    environment = {k: v for k, v in environment.items() if k != "EVERSTEP_CHECK_TOKEN"}
    done = subprocess.run(
        [*COMMAND, "--serve", "0", "--host", "0.0.0.0"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "EVERSTEP_CHECK_TOKEN" in done.stderr


def test_html_and_comparison_of_files(environment, tmp_path):
    for name in ("a", "b", "c"):
        _, report, _ = check(environment, tmp_path, "--only", "pci,cpu", "--kind", "k")
        results = [r for r in report.results if name != "c" or r.device != "0000:00:01.0"]
        renamed = msgspec.structs.replace(report, node=name, results=tuple(results))
        (tmp_path / f"{name}.json").write_bytes(msgspec.json.encode(renamed))
    done = subprocess.run(
        [*COMMAND, "--compare", "a.json", "b.json", "c.json", "--html", "all.html", "--json"],
        env=environment, cwd=tmp_path, capture_output=True, timeout=60,
    )  # fmt: skip
    reports = msgspec.json.decode(done.stdout, type=list[Report])
    if not any(r.device == "0000:00:01.0" for r in reports[0].results):
        pytest.skip("this machine has no such PCI device to take away")
    assert done.returncode == 1
    assert [r.name for r in reports[2].results if r.verdict is Judgement.BAD] == ["pci.0000:00:01.0.present"]
    assert not reports[0].count(Judgement.BAD)
    assert "0000:00:01.0 is missing" in (tmp_path / "all.html").read_text()


def test_a_baseline_of_another_kind_is_said_to_be_of_no_use(environment, tmp_path):
    _, report, _ = check(environment, tmp_path, "--only", "pci", "--kind", "other")
    (tmp_path / "other.json").write_bytes(msgspec.json.encode(report))
    code, report, _ = check(environment, tmp_path, "--only", "pci", "--baseline", "other.json")
    assert of(report, "baseline.kind").verdict is Judgement.WARN
    assert code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--only", "nothing"], ["--burn-in", "-1"], ["--expect", "x"], ["--baseline", "not-there.json"],
        ["--compare", "not-there.json"], ["--quick", "--full"], ["--html", "/nowhere/x.html", "--only", "pci"],
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_with_2(environment, tmp_path, arguments):
    done = subprocess.run([*COMMAND, *arguments], env=environment, cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


def test_json_is_one_object_that_any_reader_takes(environment, tmp_path):
    done = subprocess.run(
        [*COMMAND, "--json", "--only", "container"], env=environment, cwd=tmp_path, capture_output=True, timeout=60
    )
    report = json.loads(done.stdout)
    assert {"node", "kind", "level", "at", "results", "version"} <= report.keys()
    assert all({"name", "value"} <= row.keys() for row in report["results"])


def test_a_short_burn_in_has_its_rounds_in_the_report(environment, tmp_path):
    arguments = ("--burn-in", "0.0005", "--only", "cpu,endtoend,disk", "--disk-path", str(tmp_path))
    arguments += ("--expect", f"cpu.count={os.cpu_count()}")
    code, report, progress = check(environment, tmp_path, *arguments)
    found = {result.name: result for result in report.results}
    assert report.level == "burn-in"
    assert found["burn_in.rounds"].value >= 1
    assert found["burn_in.failures"].verdict in (Judgement.OK, Judgement.BAD)
    assert found["burn_in.endtoend.training.digest"].value
    assert found["cpu.count"].verdict is Judgement.OK
    assert len(found) == len(report.results)
    assert "left)" in progress
    assert code == (1 if report.count(Judgement.BAD) else 0)
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith((".everstep", "everstep"))] == []


def test_without_torch_its_checks_are_unsupported_and_say_why(environment, tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "torch.py").write_text("raise OSError('libc10.so: cannot open shared object file')\n")
    names = ("compute", "gpu_compute", "bandwidth", "collective", "endtoend")
    code, report, _ = check(
        {**environment, "PYTHONPATH": str(tmp_path / "broken")}, tmp_path, "--only", ",".join(names)
    )
    assert code == 0
    assert {result.category for result in report.results} == set(names)
    for result in report.results:
        assert (result.verdict, result.value) == (Judgement.UNSUPPORTED, None)
        assert "libc10.so" in result.why
