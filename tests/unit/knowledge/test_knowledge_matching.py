"""What the matcher makes of logs: known lines in any dress, blocks, repeats, unknown lines, healthy text."""

import random
from pathlib import Path

import pytest
from built_in import BASE, ENGINE

from everstep.knowledge.causality.ranking import choose_verdict, rank_findings
from everstep.knowledge.findings import MAX_FINDINGS, Finding
from everstep.knowledge.matcher import MAX_LINE_BYTES, Matcher

GOLDEN = Path(__file__).parents[2] / "golden" / "knowledge"
NOW = 1_795_000_000.0  # 2026-11-18


def found(text: str | bytes, source: str = "log") -> list[Finding]:
    matcher = Matcher(BASE, now=NOW, engine=ENGINE)
    matcher.feed(source, text.encode() if isinstance(text, str) else text)
    return matcher.finish()


def codes(text: str | bytes) -> list[str]:
    return [f.code for f in found(text)]


def golden_lines() -> list[tuple[str, str]]:
    rows = (GOLDEN / "lines.tsv").read_text().splitlines()
    return [tuple(row.split("\t", 1)) for row in rows if row and not row.startswith("#")]  # type: ignore[misc]


@pytest.mark.parametrize(("klass", "line"), golden_lines())
def test_golden_line(klass, line):
    (finding,) = found(line)
    assert finding.klass == klass
    assert (finding.line, finding.count) == (1, 1)


DRESSES = [
    "{}",
    "[rank3]: {}",
    "[rank3]:[rank3]: {}",
    "[default3]:{}",
    "3: {}",
    "(RayTrainWorker pid=811, ip=10.0.0.3) {}",
    "(VllmWorker TP0 pid=811) ERROR 11-17 03:14:05 [multiproc_executor.py:559] {}",
    "ERROR 11-17 03:14:05 engine.py:387] {}",
    "(raylet, ip=10.0.0.3) {}",
    "[stderr]{}",
    "trainer-0  | {}",
    "2026-11-17 03:14:05,123 {}",
    "2026-11-17T03:14:05.123456789Z stderr F {}",
    "\x1b[31m{}\x1b[0m",
    "{}\r",
    "  3%|7| 12/500 [00:01<00:09]\r{}",
    "[Tue Nov 17 03:14:05 2026] {}",
    "Nov 17 03:14:05 gpu-012 kernel: {}",
    "<4>[  12.345678] {}",
    "[ 449410.332316] [T1946] {}",
    "gpu-012: {}",
    "\x00\xff{}",
]


@pytest.mark.parametrize("dress", DRESSES)
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "ES-G79"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "ES-CU08"),
        ("nfs: server filer not responding, still trying", "ES-NF01"),
    ],
)
def test_a_line_is_known_in_any_dress(dress, line, code):
    assert codes(dress.format(line) + "\n") == [code]


@pytest.mark.parametrize("dress", [d for d in DRESSES if "\x00" not in d])
def test_an_exception_needs_to_begin_its_message(dress):
    assert codes(dress.format("KeyError: 'labels'") + "\n") == ["ES-PY01"]
    assert codes(dress.format("we handled KeyError: 'labels'") + "\n") == []


TRACEBACK = """Traceback (most recent call last):
  File "/home/u/train.py", line 212, in <module>
    main()
  File "/home/u/train.py", line 88, in main
    loss = model(batch["labels"])
  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1, in _call_impl
    return forward_call(*args)
{}
"""


def test_a_traceback_gives_its_exception_and_the_users_own_place():
    (finding,) = found("start\n" + TRACEBACK.format("KeyError: 'labels'"))
    assert (finding.code, finding.line, finding.place, finding.text) == (
        "ES-PY01",
        9,
        "train.py:88",
        "KeyError: 'labels'",
    )


def test_an_unknown_exception_is_for_review_whatever_it_is_called():
    (finding,) = found(TRACEBACK.format("my.lib.Kaputt: it broke"))
    assert (finding.code, finding.family, finding.acts) == ("ES-UN01", "traceback", False)
    (finding,) = found(TRACEBACK.format("RuntimeError: something nobody has seen"))
    assert finding.family == "traceback"


def test_tracebacks_of_interleaved_ranks_are_taken_apart_and_folded():
    block = TRACEBACK.format("KeyError: 'labels'").splitlines()
    lines = [f"[rank{rank}]: {line}" for line in block for rank in range(4)]
    lines.insert(9, "NVRM: Xid (PCI:0000:91:00): 79, GPU has fallen off the bus.")
    by_code = {f.code: f for f in found("\n".join(lines) + "\n")}
    assert set(by_code) == {"ES-PY01", "ES-G79"}
    assert (by_code["ES-PY01"].count, by_code["ES-PY01"].ranks) == (4, (0, 1, 2, 3))
    assert by_code["ES-PY01"].place == "train.py:88"


def test_a_chain_of_exceptions_gives_each_of_them():
    chain = TRACEBACK.format("OSError: [Errno 28] No space left on device") + (
        "\nThe above exception was the direct cause of the following exception:\n\n"
        + TRACEBACK.format("MyError: saving")
    )
    assert codes(chain) == ["ES-FS01", "ES-UN07"]
    ordered = rank_findings(found(chain))
    assert [f.code for f in ordered] == ["ES-FS01", "ES-UN07"]
    assert ordered[1].explained_by == "ES-FS01"


def test_the_members_of_an_exception_group_are_read():
    group = """  + Exception Group Traceback (most recent call last):
  |   File "/home/u/train.py", line 3, in <module>
  |     raise ExceptionGroup("two", [a, b])
  | ExceptionGroup: two (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/home/u/data.py", line 7, in load
    |     return table[key]
    | KeyError: 'labels'
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "/home/u/data.py", line 9, in load
    |     open(path)
    | OSError: [Errno 28] No space left on device
    +------------------------------------
"""
    by_code = {f.code: f for f in found(group)}
    assert {"ES-PY01", "ES-FS01"} <= set(by_code)
    assert by_code["ES-PY01"].place == "data.py:7"


def test_the_exception_of_a_loader_worker_is_read_with_its_original_traceback():
    text = TRACEBACK.format("KeyError: Caught KeyError in DataLoader worker process 0.") + (
        "Original Traceback (most recent call last):\n"
        '  File "/home/u/data.py", line 31, in __getitem__\n    return self.rows[i]["y"]\nKeyError: \'y\'\n'
    )
    assert codes(text) == ["ES-DL03", "ES-PY01"]


@pytest.mark.parametrize(
    "head",
    [
        "Exception ignored in: <function Loader.__del__ at 0x7f>",
        "--- Logging error ---",
        "Error in atexit._run_exitfuncs:",
    ],
)
def test_an_exception_that_python_ignores_is_no_fault(head):
    assert codes(f"{head}\n" + TRACEBACK.format("AttributeError: 'NoneType' object has no attribute 'close'")) == []


@pytest.mark.parametrize("head", ["Error in atexit._run_exitfuncs:", "Exception ignored in: <function F.__del__>"])
def test_an_ignored_exception_without_a_traceback_is_no_fault(head):
    """The last two lines of a training that had succeeded. What stands further down is another matter."""
    assert codes(f"finished\n{head}\nOSError: [Errno 116] Stale file handle\n") == []
    assert codes(f"finished\n{head}\n\nOSError: [Errno 116] Stale file handle\n") == ["ES-NF05"]
    twice = "OSError: [Errno 116] Stale file handle\n" * 2
    assert codes(f"finished\n{head}\n{twice}") == ["ES-NF05"], "it excuses one line"


def test_a_path_and_an_identifier_are_no_words_of_a_message():
    assert "ES-FS08" not in codes("AssertionError: _save_last_checkpoint: expected a value to be a tensor\n")
    assert "ES-FB25" not in codes("filelock.Timeout: The file lock '/h/.triton/x.lock' could not be acquired.\n")


def test_what_fails_while_python_tidies_up_is_no_fault():
    """The end of a run that had succeeded, 16 times; the program's own finalizer of that name is another."""
    text = (
        'Traceback (most recent call last):\n  File "/usr/lib/python3.10/{}", line 300, in _run_finalizers\n'
        "    finalizer()\n"
        '  File "/usr/lib/python3.10/multiprocessing/synchronize.py", line 87, in _cleanup\n    sem_unlink(name)\n'
        "FileNotFoundError: [Errno 2] No such file or directory\n"
    )
    assert codes(text.format("multiprocessing/util.py")) == []
    assert codes(text.format("site-packages/mine/util.py")) == ["ES-PY08"]


AGENT = """ERROR:torch.distributed.elastic.api:failed (exitcode: {c}) local_rank: 3 (pid: 9) of binary: python
Traceback (most recent call last):
  File "/opt/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/run.py", line 900, in main
    run(args)
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-17_08:41:24
  host      : gpu-012
  rank      : 3 (local_rank: 3)
  exitcode  : {c} (pid: 9)
  error_file: <N/A>
  traceback : {t}
============================================================
"""


@pytest.mark.parametrize(("exitcode", "klass"), [(-9, "elastic_signal"), (-11, "segfault"), (-7, "bus_error_rank")])
def test_the_agents_block_tells_how_which_rank_ended(exitcode, klass):
    findings = found(AGENT.format(c=exitcode, t="Signal received by PID 9"))
    block = next(f for f in findings if f.text.startswith("Root Cause"))
    assert (block.klass, block.ranks, block.line) == (klass, (3,), 14)
    assert "gpu-012" in block.text


def test_the_traceback_inside_the_agents_block_is_read():
    inner = (
        "Traceback (most recent call last):\n"
        '    File "/home/u/train.py", line 5, in main\n'
        "      return x / 0\n"
        "  ZeroDivisionError: division by zero\n"
        "  "
    )
    by_code = {f.code: f for f in found(AGENT.format(c=1, t=inner))}
    assert by_code["ES-PY01"].place == "train.py:5"
    assert rank_findings(list(by_code.values()))[0].code == "ES-PY01"


def test_the_detail_lines_of_a_switch_error_are_joined_to_it():
    lines = [
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 28 sourcetrack timeout error (First)",
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Severity 1 Engine instance 28 Sub-engine instance 00",
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Data {0x00000000, 0x00000000, 0x10000000}",
    ]
    (finding,) = found("\n".join(lines) + "\n")
    assert (finding.code, finding.count) == ("ES-SX24007", 1)


def test_repeats_fold_over_ranks_and_devices_stay_apart():
    text = "".join(
        f"[rank{r}]:[E1117 03:24:06.3 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={r}, OpType=ALLREDUCE) ran for 60001{r} milliseconds before timing out.\n"
        for r in range(8)
    )
    (finding,) = found(text)
    assert (finding.count, finding.ranks) == (8, tuple(range(8)))
    xids = "".join(
        f"NVRM: Xid (PCI:0000:{b:02x}:00): 79, GPU has fallen off the bus.\n" for b in range(3) for _ in range(2)
    )
    assert [(f.subject, f.count) for f in found(xids)] == [(f"0000:{b:02x}:00", 2) for b in range(3)]


@pytest.mark.parametrize(
    ("line", "family"),
    [
        ("NVRM: frobnicator out of phase", "nvrm"),
        ("NVRM: Xid (PCI:0000:91:00): 999, never seen", "nvrm"),
        ("mlx5_core 0000:5e:00.0: frobnicator out of phase", "mlx5"),
        ("mce: [Hardware Error]: TSC 0 ADDR 1ffe0", "hardware-error"),
        ("a:1:2 [0] NCCL WARN frobnicator out of phase", "nccl"),
        ("somelib.FrobnicatorError: out of phase", "traceback"),
    ],
)
def test_unknown_lines_are_caught_by_family_and_never_acted_upon(line, family):
    (finding,) = found(line + "\n")
    assert (finding.family, finding.acts, finding.to_json()["action"]) == (family, False, "REVIEW")


def healthy_line(template: str, rng: random.Random) -> str:
    stamp = f"2026-11-17 {rng.randrange(24):02d}:{rng.randrange(60):02d}:{rng.randrange(60):02d}"
    numbers = {"f": rng.random() * 9, "g": rng.random() * 4, "ms": rng.random() * 9e3, "stamp": stamp}
    return template.format(r=rng.randrange(8), n=rng.randrange(1, 99999), k=rng.randrange(1000, 9999999), **numbers)


def healthy_windows(num: int) -> list[str]:
    templates = (GOLDEN / "healthy.txt").read_text().splitlines()
    rng = random.Random(20261121)
    windows = []
    for _ in range(num):
        chosen = rng.choices(templates, k=200)
        windows.append("\n".join(healthy_line(t, rng) for t in chosen) + "\n")
    return windows


@pytest.mark.slow
def test_nothing_is_done_about_healthy_logs():
    templates = (GOLDEN / "healthy.txt").read_text().splitlines()
    rng = random.Random(1)
    whole = "\n".join(healthy_line(t, rng) for t in templates) + "\n"
    for window in [whole, *healthy_windows(250)]:
        findings = found(window)
        assert [(f.code, f.text) for f in findings if f.acts] == []
        assert not any(f.family == "traceback" for f in findings)


def test_time_stamps_are_put_on_findings_that_have_none():
    (finding,) = found("2026-11-17 03:14:05 step 3\n" + TRACEBACK.format("KeyError: 1"))
    assert finding.at == 1794885245.0
    matcher = Matcher(BASE, now=NOW, engine=ENGINE, offsets={"kmsg": 1_794_000_000.0})
    matcher.feed("kmsg", b"[  100.500000] NVRM: Xid (PCI:0000:91:00): 79, x\n")
    assert matcher.finish()[0].at == 1_794_000_100.5
    assert found("[  100.500000] NVRM: Xid (PCI:0000:91:00): 79, x\n")[0].at is None
    # a stamp without a year lies in the past
    (finding,) = found("Dec 31 23:59:59 gpu-1 kernel: NVRM: Xid (PCI:0000:91:00): 79, x\n")
    assert finding.at == 1767225599.0


def test_very_long_lines_are_read_and_memory_stays_bounded():
    fault = b"NVRM: Xid (PCI:0000:91:00): 79, GPU has fallen off the bus."
    for where in (0, 3 * MAX_LINE_BYTES - 20, 999_000):
        line = bytearray(b"x " * 500_000)
        line[where : where + len(fault)] = fault
        assert [(f.code, f.line) for f in found(b"a\n" + bytes(line) + b"\nb\n")] == [("ES-G79", 2)]
    two = fault + b" x" * 200_000 + b" CUDA out of memory " + b"x " * 200_000
    assert [(f.code, f.line) for f in found(b"a\n" + two + b"\nKilled\n")] == [
        ("ES-G79", 2),
        ("ES-CU08", 2),
        ("ES-PY19", 3),
    ]
    matcher = Matcher(BASE, now=NOW, engine=ENGINE)
    for _ in range(64):
        matcher.feed("log", b"y" * 100_000)
    assert len(matcher._streams["log"].tail) < MAX_LINE_BYTES + 1


def test_too_many_different_findings_are_counted_not_kept():
    def word(number: int) -> str:
        return "".join(chr(97 + number // 26**i % 26) for i in range(4))

    text = "".join(f"lib.{word(n).capitalize()}Error: x\n" for n in range(MAX_FINDINGS + 50))
    matcher = Matcher(BASE, now=NOW, engine=ENGINE)
    matcher.feed("log", text.encode())
    assert (len(matcher.finish()), matcher.num_dropped) == (MAX_FINDINGS, 50)


def test_a_finding_is_there_with_the_end_of_its_line_and_finish_reads_the_rest():
    matcher = Matcher(BASE, now=NOW, engine=ENGINE)
    matcher.feed("kmsg", b"NVRM: Xid (PCI:0000:91:00): 79, GPU has")
    assert matcher.findings() == []
    matcher.feed("kmsg", b" fallen off the bus.\nMemory")
    assert [f.code for f in matcher.findings()] == ["ES-G79"]
    matcher.feed("kmsg", b"Error")
    assert [f.code for f in matcher.finish()] == ["ES-G79", "ES-HM02"]


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("[Rank 3] Watchdog caught collective operation timeout: rank 5 is late", (3,)),
        ("RuntimeError: Detected mismatch between collectives on ranks. Rank 3 ran one", (3,)),
        ("RuntimeError: Detected mismatch between collectives on ranks. Rank 3 ran one, but Rank 5 another", ()),
    ],
)
def test_a_line_that_names_several_ranks_is_of_none(text: str, ranks: tuple[int, ...]):
    matcher = Matcher(BASE, now=NOW, engine=ENGINE)
    matcher.feed("log", f"{text}\n".encode())
    assert [finding.ranks for finding in matcher.finish()] == [ranks]


def test_what_a_library_logs_as_information_is_no_fault():
    line = "[I ProcessGroupWrapper.cpp:562] [Rank 0] Running collective: CollectiveFingerPrint(SequenceNumber=7)"
    matcher = Matcher(BASE, now=NOW, engine=ENGINE)
    matcher.feed("log", f"{line}\n".encode())
    assert not [finding.code for finding in matcher.finish() if finding.acts]


@pytest.mark.parametrize("signal", ["Killed", "Terminated", "Hangup"])
def test_a_worker_of_a_loader_that_was_killed_from_outside_blames_nobody_yet(signal):
    text = f"RuntimeError: DataLoader worker (pid 31) is killed by signal: {signal}. \n"
    chained = f"{text}\nRuntimeError: DataLoader worker (pid(s) 31) exited unexpectedly\n"
    for printed in (text, chained):
        first = rank_findings(found(printed))[0]
        assert (first.code, first.blame) == ("ES-DL08", "unknown")


def test_a_worker_of_a_loader_that_crashed_is_told_by_its_crash():
    text = "RuntimeError: DataLoader worker (pid 31) is killed by signal: Aborted. \n"
    assert (
        rank_findings(found(f"{text}RuntimeError: DataLoader worker (pid(s) 31) exited unexpectedly\n"))[0].code
        == "ES-DL05"
    )


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("fit.py: error: Override 'local-rank' is none of ours", "ES-PY14"),
        ("tools/pretrain.py: error: one of --config and --resume is needed", "ES-PY14"),
        ("Warning: Lock file exists in build directory: '/h/.cache/torch_extensions/py311/op/lock'", "ES-PY26"),
        ("still waiting to acquire lock on /h/.cache/hub/.locks/models--a--b/4f.lock", "ES-PY26"),
        (
            "EJ0001: Failed to initialize the HCCP process. Reason: Maybe the last training process is running.",
            "ES-AS14",
        ),
        ("filelock._error.Timeout: The file lock '/h/.cache/x.lock' could not be acquired.", "ES-FB35"),
    ],
)
def test_what_a_launch_finds_in_its_way(line, code):
    assert codes(f"{line}\n") == [code]


def test_a_number_called_error_is_no_wrong_option():
    assert codes("eval.py: error: 0.231\n") == []


def test_an_error_that_a_wrapper_quotes_says_more_than_the_wrapper():
    text = "ValueError: Failed to load the settings after 4 attempts. This might be due to network issues. Last error: "
    head = 'Traceback (most recent call last):\n  File "/job/load.py", line 4, in load\n    raise ValueError(\n'
    assert codes(f"{head}{text}The file lock '/h/.cache/x.lock' could not be acquired.\n") == ["ES-FB35"]
    assert codes(f"{head}{text}something odd\n") == ["ES-PY01"]


def test_a_lock_that_was_given_in_the_end_is_information():
    steps = "".join(f"step {number} loss 2.{number}\n" for number in range(30))
    text = f"Warning: Lock file exists in build directory: '/h/op/lock'\n{steps}"
    assert choose_verdict(rank_findings(found(text))).finding is None


@pytest.mark.parametrize(
    "line", ["failed (exitcode: 1) local_rank: 2 (pid: 88)", "Child process 88 (local_rank 2) FAILED"]
)
def test_a_local_rank_is_not_a_rank_of_the_job(line):
    assert [f.ranks for f in found(f"{line}\n")] == [()]
