"""A line explains an end only when it is linked to it: old harmless lines change no verdict, whatever the end is."""

import pytest
from built_in import BASE, ENGINE

from everstep.agent.processes.error_reports import last_words
from everstep.agent.ranks.last_words import LastWords
from everstep.knowledge.causality.ranking import choose_verdict, rank_findings
from everstep.knowledge.ending import end_of_rank
from everstep.knowledge.matcher import Matcher
from everstep.knowledge.signature import Action
from everstep.model.facts import ErrorReport

NOW = 1_795_000_000.0

OLD = {
    "read-only mount": "sysctl: setting key vm.overcommit_memory, ignoring: Read-only file system",
    "read-only, bare": "could not touch /opt/cache/lock: Read-only file system",
    "fabric manager": "nvidia-fabricmanager[811]: WARNING: no NVSwitch found, fabric manager has nothing to do",
    "fabric manager error": "fabric manager: error: NVSwitch fabric is not initialized yet",
    "web request": "HTTPSConnectionPool(host='stats.local', port=443): Max retries exceeded, Connection refused",
    "web retry": "upload failed: Connection reset by peer, retrying (attempt 1/5)",
    "caught oom": "CUDA out of memory. Tried to allocate 2.00 GiB. Halving the micro batch",
    "oom, bare": "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "counters": "GPU 3: volatile uncorrectable ECC errors: 0, retired pages: 0",
    "future warning": "/opt/lib/amp.py:12: FutureWarning: torch.cuda.amp.autocast(args) is deprecated",
    "socket warning": "[W1121 10:00:01.120 socket.cpp:755] [c10d] The client socket has failed to connect to n1:29500",
    "socket, bare": "[c10d] The client socket has failed to connect to [n1]:29500 (errno: 111 - Connection refused).",
    "nccl fallback": "n1:88:99 [0] NCCL WARN NET/IB : No device found.",
    "printed xid": "NVRM: Xid (PCI:0000:4b:00): 79, pid=901, name=python3, GPU has fallen off the bus.",
    "disk": "cache: [Errno 28] No space left on device: '/tmp/x.idx', going on without an index",
    "s3": "botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: 'https://s3.local/b'",
    "checkpoint": "checkpoint /ckpt/step-0 does not exist, starting from nothing",
    "loader": "DataLoader worker (pid 4242) is killed by signal: Killed. A new one was started.",
    "ulimit": "OpenBLAS blas_thread_init: pthread_create failed for thread 3 of 8: Resource temporarily unavailable",
    "source": '    raise RuntimeError(f"CUDA error: device-side assert triggered on {rank}")',
    "handled traceback": "Traceback (most recent call last):\n"
    '  File "/job/cache.py", line 8, in load\n    open(path)\nFileNotFoundError: [Errno 2] No such file or directory',
    "ignored exception": "Exception ignored in: <function Pool.__del__ at 0x7f>",
    "thermal": "mcelog: Machine check events logged by an earlier boot, see journal",
}


def raised(exception: str) -> str:
    return (
        'Traceback (most recent call last):\n  File "/job/train.py", line 21, in <module>\n    main()\n'
        f'  File "/job/train.py", line 12, in main\n    step(batch)\n{exception}\n'
    )


EXCEPTIONS = {
    "KeyError": "KeyError: 'labels'",
    "ValueError": "ValueError: Expected input batch_size (8) to match target batch_size (4).",
    "own": "train.BadSampleError: sample 17 is empty",
    "runtime": "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x4 and 5x2)",
    "assertion": "AssertionError: device and file of the cache do not match",
}
ENDS = {name: raised(text) for name, text in EXCEPTIONS.items()} | {
    "oom": raised("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has 79 GiB."),
    "illegal access": raised("RuntimeError: CUDA error: an illegal memory access was encountered"),
    "segfault": "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
    '  File "/job/train.py", line 12 in main\n',
    "abort": "terminate called after throwing an instance of 'std::logic_error'\n  what():  bad state of the queue\n",
    "bus error": "Fatal Python error: Bus error\n\nThread 0x00007f (most recent call first):\n",
    "killed": "run.sh: line 4: 811 Killed python train.py\n",
}


def verdict(text: str) -> tuple[str, str, str] | None:
    matcher = Matcher(BASE, now=NOW, engine=ENGINE)
    matcher.feed("log", text.encode())
    found = choose_verdict(rank_findings(matcher.finish())).finding
    return None if found is None else (found.code, str(found.blame), str(found.action))


def steps(first: int, last: int) -> str:
    return "".join(f"step {n} loss {4.2 - n / 1000:.3f} lr 3.0e-04 tokens/s 41235\n" for n in range(first, last))


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("old", OLD)
def test_an_old_line_does_not_change_the_verdict(old, end):
    with_it = verdict(f"starting\n{OLD[old]}\n{steps(0, 300)}{ENDS[end]}")
    assert with_it == verdict(f"starting\n{steps(0, 300)}{ENDS[end]}")


@pytest.mark.parametrize("old", OLD)
def test_an_old_line_of_a_job_that_goes_on_is_no_cause(old):
    assert verdict(f"starting\n{OLD[old]}\n{steps(0, 300)}") is None


# Of two tracebacks without a step, a time or a rank between them the first may be the cause.
@pytest.mark.parametrize("end", EXCEPTIONS)
@pytest.mark.parametrize("old", [old for old in OLD if old != "handled traceback"])
def test_an_exception_of_the_program_needs_no_other_reason(old, end):
    """Also where nothing shows steps, and nothing a time."""
    log = "starting\n" + "loading a shard\n" * 50
    assert verdict(f"{OLD[old]}\n{log}{ENDS[end]}") == verdict(f"{log}{ENDS[end]}")


@pytest.mark.parametrize("end", EXCEPTIONS)
@pytest.mark.parametrize("old", OLD)
def test_the_end_of_a_rank_is_what_it_reported(old, end):
    kind, _, message = EXCEPTIONS[end].partition(": ")
    error = ErrorReport(kind=kind, message=message, traceback=ENDS[end], place="train.py:12", at=9.0)
    bare = ErrorReport(kind=kind, message=message, place="train.py:12", at=9.0)
    alone = said(ENDS[end], error)
    assert said(f"{OLD[old]}\n{ENDS[end]}", error) == alone
    assert said(f"{OLD[old]}\n", bare) == alone


def said(output: str, error: ErrorReport) -> tuple[str, str, str] | None:
    found = end_of_rank(output, error, rank=2, at=9.0)
    return None if found is None else (found.code, found.blame, found.action)


@pytest.mark.parametrize("old", OLD)
def test_a_program_never_asks_for_more_than_a_check_of_the_node(old):
    found = end_of_rank(OLD[old], None, rank=1, at=1.0)
    acts = {Action.DRAIN_AND_RESTART_NODE, Action.RESET_GPU, Action.REBOOT_NODE, Action.REPLACE_NODE}
    assert found is None or Action(found.action) not in acts


def test_a_warning_that_repeats_is_taken_out_and_hides_nothing():
    warning = "sysctl: setting key vm.swappiness, ignoring: Read-only file system"
    log = "".join(f"{n % 8}: [n{n}] {warning}\n" for n in range(5000))
    fault = "OSError: [Errno 28] No space left on device: '/ckpt/a'"
    matcher = Matcher(BASE, now=NOW, engine=ENGINE)
    matcher.feed("log", log.encode())
    matcher.feed("log", f"{log}{fault}\n{log}".encode())
    (found,) = matcher.finish()
    assert (found.code, found.line) == ("ES-FS01", 10001)


def test_what_a_number_decides_is_never_taken_out():
    log = "".join("upload: attempt 2/5 failed: No space left on device\n" for _ in range(100))
    matcher = Matcher(BASE, now=NOW, engine=ENGINE)
    matcher.feed("log", log.encode())
    matcher.feed("log", b"upload: attempt 5/5 failed: No space left on device\n")
    assert [f.code for f in matcher.finish()] == ["ES-FS01"]


def test_what_was_written_before_the_last_step_does_not_belong_to_the_end(tmp_path):
    log = tmp_path / "stderr.log"
    words = LastWords(log)
    words.look(0.0, None)
    log.write_text("old\n")
    for now in range(1, 400):
        words.look(float(now), float(now))
    log.write_text("old\nlast\n")
    words.look(400.0, 399.0)
    assert last_words(log, words.begin(400.2)).rstrip() == "last"
    assert last_words(log).rstrip() == "old\nlast"


def test_what_was_written_since_the_last_step_belongs_to_it_however_long_ago(tmp_path):
    log = tmp_path / "stderr.log"
    words = LastWords(log)
    for now in range(10):
        words.look(float(now), float(now))
    log.write_text("link down\n")
    for now in range(10, 900):
        words.look(float(now), 9.0)
    assert last_words(log, words.begin(900.0)).rstrip() == "link down"


def test_a_log_at_which_nobody_looked_belongs_to_the_end_as_a_whole(tmp_path):
    log = tmp_path / "stderr.log"
    log.write_text("all\n")
    assert last_words(log, LastWords(log).begin(5.0)).rstrip() == "all"


LINKED = [
    ("OSError: [Errno 28] No space left on device", "", "ES-FS01"),
    (
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled system error",
        "n1:8:9 [0] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory\n",
        "ES-NC06",
    ),
    ("RuntimeError: Caught KeyError in DataLoader worker process 0.", "", None),
]


@pytest.mark.parametrize(("exception", "before", "code"), LINKED)
def test_what_speaks_of_the_same_resource_still_explains_it(exception, before, code):
    found = verdict(f"{steps(0, 30)}{before}{raised(exception)}")
    assert found is None or code is None or found[0] == code


def test_a_cause_that_is_named_by_the_exception_is_found():
    text = raised("KeyError: 'a'") + "\nThe above exception was the direct cause of the following exception:\n\n"
    found = verdict(steps(0, 30) + text + raised("RuntimeError: no batch could be made"))
    assert found is not None
    assert found[0] == "ES-PY01"


def test_peers_that_finish_a_step_do_not_hide_a_fault():
    fault = "RuntimeError: CUDA error: an illegal memory access was encountered"
    log = "".join(f"[rank{r}]: step {n} loss 3.1\n" for n in range(40) for r in range(4))
    late = "".join(f"[rank{r}]: step {n} loss 3.1\n" for n in (40, 41) for r in range(3))
    assert verdict(log + raised(fault).replace("\n", "\n[rank3]: ") + late) == verdict(raised(fault))


def test_the_kernel_log_is_strong_whatever_stands_after_it():
    xid = "[ 9.1] NVRM: Xid (PCI:0000:4b:00): 79, pid=901, name=python3, GPU has fallen off the bus.\n"
    found = verdict(xid + raised("RuntimeError: CUDA error: unspecified launch failure"))
    assert found is not None
    assert found[0] == "ES-G79"


LIBRARY = "/usr/lib/python3.11/urllib/request.py"


def two_tracebacks(first: str, path: str, code: str, second: str, link: str) -> str:
    return (
        f'Traceback (most recent call last):\n  File "{LIBRARY}", line 643, in http_error_default\n'
        f"    raise HTTPError(req.full_url, code, msg, hdrs, fp)\n{first}\n\n{link}\n\n"
        'Traceback (most recent call last):\n  File "/job/train.py", line 60, in <module>\n    main()\n'
        f'  File "{path}", line 34, in fetch\n    {code}\n{second}\n'
    )


HANDLING = "During handling of the above exception, another exception occurred:"
CAUSE = "The above exception was the direct cause of the following exception:"
WEB = "urllib.error.HTTPError: HTTP Error 503: Service Unavailable"


@pytest.mark.parametrize("second", ["KeyError: 'mirror'", "AttributeError: 'str' object has no attribute 'url'"])
@pytest.mark.parametrize("tag", ["", "[rank1]: "])
def test_a_handler_that_fails_by_itself_is_the_programs(second, tag):
    text = two_tracebacks(WEB, "/job/train.py", 'print("instead", settings["mirror"])', second, HANDLING)
    tagged = "".join(f"{tag}{line}\n" if line else "\n" for line in text.splitlines())
    for report in ("", text):
        kind, _, message = second.partition(": ")
        error = ErrorReport(kind=kind, message=message, traceback=report) if report else None
        alert = end_of_rank(tagged, error, rank=1, at=0.0)
        assert alert is not None
        assert alert.blame == "user", alert


@pytest.mark.parametrize(
    ("first", "path", "code", "second", "link"),
    [
        (WEB, "/job/train.py", 'raise KeyError("no data") from error', "KeyError: 'no data'", CAUSE),
        (WEB, "/job/train.py", 'raise ValueError("no data")', "ValueError: no data", HANDLING),
        (WEB, "/venv/site-packages/hub/files.py", "reply.close()", "AttributeError: 'NoneType' ...", HANDLING),
    ],
)
def test_who_passes_a_failure_on_does_not_take_its_blame(first, path, code, second, link):
    alert = end_of_rank(two_tracebacks(first, path, code, second, link), None, rank=1, at=0.0)
    assert alert is not None
    assert alert.blame == "network", alert


def test_a_device_that_failed_stays_the_cause_whatever_its_handler_does():
    first = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    text = two_tracebacks(first, "/job/train.py", 'save(model, settings["mirror"])', "KeyError: 'mirror'", HANDLING)
    alert = end_of_rank(text, None, rank=1, at=0.0)
    assert alert is not None
    assert alert.blame == "machine", alert
