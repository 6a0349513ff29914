"""The reading verbs as a person calls them: real processes, real files, with the run alive, over, or torn."""

import json
import os
import pty
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[2] / "golden" / "journal.jsonl"
VERBS = (["status"], ["incident"], ["incident", "show", "i2"], ["explain", "i2"], ["goodput"])
STATUS_LIMIT_S = 0.150
MOST_DECODERS = 4  # about 2.5 where it is measured


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    home = tmp_path / "home"
    run = home / "runs" / "r7f3"
    run.mkdir(parents=True)
    (run / "journal.jsonl").write_bytes(GOLDEN.read_bytes())
    (home / "runs" / "latest").symlink_to("r7f3")
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    return {**kept, "EVERSTEP_HOME": str(home), "TERM": "xterm", "PYTHONUNBUFFERED": "1"}


def run_dir(env: dict[str, str]) -> Path:
    return Path(env["EVERSTEP_HOME"]) / "runs" / "r7f3"


def everstep(*words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "everstep.cli.main", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def write_log(env: dict[str, str], generation: int, rank: int, stream: str, text: str) -> Path:
    path = run_dir(env) / "logs" / f"gen-{generation}" / f"rank-{rank}" / f"{stream}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)
    return path


@contextmanager
def controller(env: dict[str, str], num_lines: int) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the journal, cut to its first lines, as the controller of a live run does."""
    path = run_dir(env) / "journal.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:num_lines]))
    code = "import sys; from pathlib import Path; from everstep.journal.writer import Journal\n"
    code += f"journal, _, _ = Journal.open(Path({str(path)!r})); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_answers_in_text_and_json(verb: list[str], env: dict[str, str]) -> None:
    for words in (verb, [*verb, "r7f3"], [*verb, "--run-dir", str(run_dir(env))]):
        done = everstep(*words, env=env)
        assert (done.returncode, done.stderr) == (0, "")
        assert "\x1b" not in done.stdout, "not a terminal: no colours"
    as_json = everstep(*verb, "--json", env=env)
    assert as_json.returncode == 0
    assert json.loads(as_json.stdout)


def test_no_reading_verb_imports_torch_or_rich(env: dict[str, str]) -> None:
    write_log(env, 3, 1, "stderr", "KeyError\n")
    for verb in (*VERBS, ["logs"], ["explain", "ES-P09"]):
        command = [sys.executable, "-X", "importtime", "-m", "everstep.cli.main", *verb]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
        assert "everstep.cli.main" in imported or "everstep.journal.load" in imported
        assert not imported & {"torch", "numpy", "rich", "aiohttp", "asyncio", "everstep.worker", "everstep.core"}, verb


def test_status_answers_at_once(env: dict[str, str]) -> None:
    """The best of several; on a busy machine, its processor time, compared with what an interpreter takes to decode
    anything: then it is not the verb that is slow."""
    status, used, decoder = [], [], []
    for _ in range(12):
        before = _used_s()
        subprocess.run([sys.executable, "-c", "import msgspec"], check=True, timeout=60)
        between, begun = _used_s(), time.perf_counter()
        assert everstep("status", env=env).returncode == 0
        status.append(time.perf_counter() - begun)
        used.append(_used_s() - between)
        decoder.append(between - before)
        if min(status) < STATUS_LIMIT_S and len(status) >= 3:
            return
    assert min(used) < max(STATUS_LIMIT_S, MOST_DECODERS * min(decoder))


def _used_s() -> float:
    """Processor time of all children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def test_a_live_run_is_told_from_one_whose_controller_is_gone(env: dict[str, str]) -> None:
    with controller(env, num_lines=22) as process:
        live = everstep("status", env=env)
        assert "RUNNING" in live.stdout
        assert "controller gone" not in live.stdout
        found = json.loads(everstep("status", "--json", env=env).stdout)
        assert found["controller"] == {"alive": True, "pid": process.pid, "gone_since": None, "restarts": 0}
        assert found["as_of"] == pytest.approx(time.time(), abs=30)
        process.send_signal(signal.SIGKILL)
        process.wait()
        gone = everstep("status", env=env)
        assert "controller gone since then" in gone.stdout
        found = json.loads(everstep("status", "--json", env=env).stdout)
        assert found["controller"]["alive"] is False
        assert found["as_of"] == found["controller"]["gone_since"] < time.time()


def test_a_process_id_given_to_another_program_is_not_a_controller(env: dict[str, str]) -> None:
    path = run_dir(env) / "journal.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:22]))
    (run_dir(env) / "journal.lock").write_text(f"{os.getpid()}\n")
    (run_dir(env) / "controller.json").write_text(json.dumps({"pid": os.getpid(), "port": 1}))
    assert "controller gone since then" in everstep("status", env=env).stdout


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["status", "r9"], 2, "no run 'r9'"),
        (["status", "--run-dir", "/nowhere"], 2, "is gone"),
        (["incident", "i9"], 2, "no incident 'i9' in run r7f3; there are: i1, i2, i3, i4"),
        (["incident", "show"], 2, "needs an incident"),
        (["explain", "ES-X99"], 2, "no code ES-X99; there are: ES-P01"),
        (["explain"], 2, "usage"),
        (["logs"], 2, "no logs in"),
        (["logs", "--tail", "-1"], 2, "must not be negative"),
        (["frobnicate"], 2, "unknown command 'frobnicate' (choose from run, status"),
        ([], 2, ""),
    ],
)
def test_what_cannot_be_done_is_one_message_and_an_exit_code(
    words: list[str], code: int, says: str, env: dict[str, str]
) -> None:
    done = everstep(*words, env=env)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_damaged_or_newer_journal_is_refused_with_its_line(verb: list[str], env: dict[str, str]) -> None:
    path = run_dir(env) / "journal.jsonl"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:5], b"garbage\n", *lines[6:]]))
    damaged = everstep(*verb, env=env)
    assert (damaged.returncode, damaged.stdout) == (4, "")
    assert "damaged at line 6" in damaged.stderr
    path.write_bytes(whole.replace(b'"v":1', b'"v":2'))
    newer = everstep(*verb, env=env)
    assert newer.returncode == 4
    assert "schema version 2" in newer.stderr


def test_no_run_yet_teaches(tmp_path: Path, env: dict[str, str]) -> None:
    done = everstep("status", env={**env, "EVERSTEP_HOME": str(tmp_path / "empty")})
    assert (done.returncode, done.stderr) == (2, f"everstep: no run yet in {tmp_path / 'empty'}. Try: everstep demo\n")


def test_the_usage_names_every_verb(env: dict[str, str]) -> None:
    done = everstep("--help", env=env)
    assert done.returncode == 0
    for verb in ("run", "status", "incident", "explain", "goodput", "logs"):
        assert f"\n  {verb} " in done.stdout
    assert everstep("--version", env=env).stdout.startswith("everstep ")


def test_colours_on_a_terminal_and_none_with_no_color(env: dict[str, str]) -> None:
    for extra, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        main, side = pty.openpty()
        command = [sys.executable, "-m", "everstep.cli.main", "status"]
        done = subprocess.run(command, env={**env, **extra}, stdout=side, timeout=60, check=False)
        os.close(side)
        out = os.read(main, 65536)
        os.close(main)
        assert done.returncode == 0
        assert b"GAVE UP" in out
        assert (b"\x1b[" in out) is coloured


def test_a_reader_that_has_enough_is_not_an_error(env: dict[str, str]) -> None:
    write_log(env, 0, 0, "stdout", "".join(f"line {number}\n" for number in range(50_000)))
    command = [sys.executable, "-m", "everstep.cli.main", "logs", "--tail", "0"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "line 0\n"
        process.stdout.close()
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == ""


def test_logs_of_ranks_and_generations(env: dict[str, str]) -> None:
    write_log(env, 0, 0, "stdout", "old\n")
    write_log(env, 1, 0, "stdout", "".join(f"out {number}\n" for number in range(100)))
    write_log(env, 1, 1, "stderr", "err without newline")
    both = everstep("logs", env=env).stdout
    assert "==> gen 1 rank 0 stdout <==" in both
    assert "out 50\n" in both
    assert "out 49\n" not in both
    assert "340 bytes before" in both
    assert "==> gen 1 rank 1 stderr <==\nerr without newline\n" in both
    assert "old" not in both
    alone = everstep("logs", "--rank", "0", "--stream", "stdout", "--tail", "2", env=env)
    assert alone.stdout == "out 98\nout 99\n"
    assert everstep("logs", "--generation", "0", "--stream", "stdout", env=env).stdout == "old\n"
    missing = everstep("logs", "--rank", "7", env=env)
    assert (missing.returncode, "there are: 0, 1" in missing.stderr) == (2, True)
    found = json.loads(everstep("logs", "--rank", "1", "--stream", "stderr", "--json", env=env).stdout)
    assert found["logs"][0]["lines"] == ["err without newline"]


def test_the_first_error_is_the_causes_own_words(env: dict[str, str]) -> None:
    write_log(env, 3, 1, "stderr", "warning: something\nKeyError: 'labels'\n")
    write_log(env, 3, 0, "stderr", "Connection closed by peer\n")
    done = everstep("logs", "--first-error", env=env)
    assert done.returncode == 0
    assert done.stdout.startswith("i4  03:02:22.480  rank 1 (n0)   ES-U01")
    assert "loss = model(batch[" in done.stdout
    assert "end of gen 3 rank 1 stderr" in done.stdout
    assert "Connection closed" not in done.stdout


def test_logs_follow_a_live_run_to_its_end(env: dict[str, str]) -> None:
    with controller(env, num_lines=22) as process:
        path = write_log(env, 0, 0, "stdout", "one\ntwo")
        command = [sys.executable, "-m", "everstep.cli.main", "logs", "--follow"]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "[gen 0 rank 0 stdout] one\n"
            with path.open("a") as file:
                file.write(" and a half\n")
            assert follower.stdout.readline() == "[gen 0 rank 0 stdout] two and a half\n"
            write_log(env, 1, 2, "stderr", "restarted\nlast words")
            assert follower.stdout.readline() == "[gen 1 rank 2 stderr] restarted\n"
            process.kill()
            assert follower.stdout.read() == "[gen 1 rank 2 stderr] last words\n"
            assert follower.wait(timeout=60) == 0


def test_ctrl_c_ends_a_follower_with_130(env: dict[str, str]) -> None:
    with controller(env, num_lines=22):
        write_log(env, 0, 0, "stdout", "one\n")
        command = [sys.executable, "-m", "everstep.cli.main", "logs", "--follow"]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follower:
            assert follower.stdout is not None
            assert follower.stderr is not None
            assert follower.stdout.readline() == "[gen 0 rank 0 stdout] one\n"
            follower.send_signal(signal.SIGINT)
            assert follower.wait(timeout=60) == 130
            assert follower.stderr.read() == ""
