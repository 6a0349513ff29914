"""The agent's small parts: environment, error reports, learned imports, channels, the worker's program and hooks."""

import asyncio
import json
import os
import socket
import struct
import sys
import threading
import time
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.agent.memory.board import Board
from everstep.agent.processes import ahead
from everstep.agent.processes import error_reports as exits
from everstep.agent.processes.channel import Channel
from everstep.agent.processes.environment import base_environment, rank_environment
from everstep.model.actions import StartWorkers
from everstep.model.spec import RunSpec
from everstep.wire import local
from everstep.worker.hooks import hooks
from everstep.worker.link import assignment, runtime
from everstep.worker.process import errors, modules
from everstep.worker.process.board import BoardLine

ACTION = StartWorkers(
    why="test",
    node="n0",
    generation=3,
    slot=1,
    first_rank=4,
    num_ranks=4,
    world_size=8,
    num_slots=2,
    store_host="10.0.0.1",
    store_port=29400,
    resume_step=None,
)


def test_ranks_get_torchruns_variables(tmp_path):
    base = base_environment({"HOME": "/h", "EVERSTEP_LINK_FD": "9"}, 4, "w", watches=True)
    env = rank_environment(
        base,
        RunSpec(program="t.py", role="trainer"),
        ACTION,
        local_rank=2,
        run="r1",
        max_restarts=7,
        error_file=tmp_path,
    )
    assert env == {
        "HOME": "/h",
        "OMP_NUM_THREADS": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCH_FR_BUFFER_SIZE": "512",
        "EVERSTEP_WARD": "w",
        "RANK": "6",
        "LOCAL_RANK": "2",
        "GROUP_RANK": "1",
        "ROLE_RANK": "6",
        "ROLE_NAME": "trainer",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
        "ROLE_WORLD_SIZE": "8",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29400",
        "TORCHELASTIC_RESTART_COUNT": "3",
        "TORCHELASTIC_MAX_RESTARTS": "7",
        "TORCHELASTIC_RUN_ID": "r1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": str(tmp_path),
        "EVERSTEP_RUN_ID": "r1",
        "EVERSTEP_GENERATION": "3",
        "EVERSTEP_SLOT": "1",
        "EVERSTEP_RESUME_STEP": "",
    }


def test_the_users_threads_and_a_lone_rank_are_left_alone():
    assert base_environment({"OMP_NUM_THREADS": "8"}, 4, "w")["OMP_NUM_THREADS"] == "8"
    assert "OMP_NUM_THREADS" not in base_environment({}, 1, "w")
    assert base_environment({"TORCH_FR_BUFFER_SIZE": "0"}, 1, "w")["TORCH_FR_BUFFER_SIZE"] == "0"
    assert base_environment({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}, 1, "w")["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"


# -- error reports --


def test_our_report_is_read_back(tmp_path):
    path = tmp_path / "rank-0.json"
    began = time.time()
    try:
        json.loads("{")
    except ValueError as error:
        errors.report_exception(str(path), error)
    report = exits.read_error(path)
    assert (report.kind, report.place.split(":")[0]) == ("JSONDecodeError", "test_agent_parts.py")
    assert report.message in report.traceback
    assert began <= report.at <= time.time()


def test_the_first_report_stays(tmp_path):
    path = tmp_path / "rank-0.json"
    errors.write_report(str(path), kind="A", message="first")
    errors.write_report(str(path), kind="B", message="second")
    assert exits.read_error(path).message == "first"
    assert [file.name for file in tmp_path.iterdir()] == ["rank-0.json"]


def test_a_report_cut_anywhere_is_unknown_never_an_error(tmp_path):
    path = tmp_path / "rank-0.json"
    errors.write_report(str(path), kind="A", message="m", text="t", place="x.py:1")
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert exits.read_error(path) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["message", "extraInfo", "everstep", "py_callstack", "timestamp", "kind", "at"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=8,
)


@given(JSON)
def test_any_json_is_a_report_or_none(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("report") / "rank-0.json"
    path.write_text(json.dumps(value))
    report = exits.read_error(path)
    assert report is None or isinstance(report.message, str)


def test_an_exception_whose_text_raises_is_still_reported(tmp_path):
    class Bad(Exception):
        def __str__(self):
            raise RuntimeError

    path = tmp_path / "r.json"
    errors.report_exception(str(path), Bad())
    assert exits.read_error(path).message == "<its __str__ raised>"


def test_a_very_long_traceback_keeps_both_ends(tmp_path):
    path = tmp_path / "r.json"
    errors.write_report(str(path), kind="A", message="m", text="begin" + "x" * 1_000_000 + "end")
    text = exits.read_error(path).traceback
    assert text.startswith("begin")
    assert text.endswith("end")
    assert len(text) < 70_000


def test_place_in_a_printed_traceback_is_the_users_frame():
    text = (
        'Traceback (most recent call last):\n  File "/home/u/train.py", line 12, in <module>\n    main()\n'
        f'  File "{json.__file__}", line 300, in loads\n    x\n  File "<string>", line 1, in <module>\nE: m\n'
    )
    assert exits.place_of(text) == "train.py:12"
    assert exits.place_of("nothing here") == ""


def test_last_output_is_the_end_in_whole_lines(tmp_path):
    path = tmp_path / "stderr.log"
    path.write_text("".join(f"line {n}\n" for n in range(1000)))
    text = exits.last_output(path)
    assert text.endswith("line 999")
    assert text.startswith("line ")
    assert len(text) <= exits.MAX_OUTPUT_BYTES
    path.write_bytes(b"\xff" * 5000)
    assert 0 < len(exits.last_output(path)) <= exits.MAX_OUTPUT_BYTES
    assert exits.last_output(tmp_path / "absent") == ""


CRASH = """\
Fatal Python error: Segmentation fault

Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait

Current thread 0x00007f02 (most recent call first):
  File "{library}", line 519 in string_at
  File "/home/u/train.py", line 41 in step
  File "/home/u/train.py", line 99 in main

Extension modules: {modules} (total: 400)
"""


def test_the_stack_of_a_crash_says_where_the_program_was(tmp_path):
    path = tmp_path / "stderr.log"
    modules = ", ".join(f"torch._C._module{number}" for number in range(400))
    path.write_text("step 1\n" + CRASH.format(library=json.__file__, modules=modules))
    assert exits.crash_place(path) == "train.py:41"
    text = exits.last_output(path)
    assert text.startswith("step 1")
    assert text.endswith("line 99 in main")
    path.write_text(CRASH.format(library=json.__file__, modules=modules).replace("/home/u/train.py", json.__file__))
    assert exits.crash_place(path) == "__init__.py:519"
    path.write_text(
        "Fatal Python error: Aborted\n\nCurrent thread 0x01 (most recent call first):\n  <no Python frame>\n"
    )
    assert exits.crash_place(path) == ""
    assert exits.crash_place(tmp_path / "absent") == ""


# -- what is imported ahead --


def test_what_is_imported_ahead_is_checked_and_kept(tmp_path):
    told = ahead.parse(["json", "os.path", "../evil", "a b", "x;y", "pkg.sub"], {"TORCH_X": "1", "HF_Y": None})
    assert told == ahead.Ahead(modules=["json", "os.path", "pkg.sub"], changed={"TORCH_X": "1", "HF_Y": None})
    ahead.write(ahead.path_in(tmp_path), told)
    assert ahead.read(ahead.path_in(tmp_path)) == told


@given(st.binary(max_size=60))
def test_a_damaged_list_is_none(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("run") / "ahead.json"
    path.write_bytes(data)
    assert ahead.read(path) in (None, ahead.Ahead())


def test_only_library_modules_are_told(tmp_path, monkeypatch):
    (tmp_path / "own_module_of_mine.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("own_module_of_mine")
    names = modules.importable_ahead()
    assert {"json", "pytest", "json.decoder"} <= set(names)
    assert not {"own_module_of_mine", "__main__", "everstep", "everstep.worker.process.modules"} & set(names)
    del sys.modules["own_module_of_mine"]


# -- channels --


def talk(write) -> tuple[list, list]:
    """What a channel makes of what the other side does."""
    ours, theirs = socket.socketpair()
    frames, closed = [], []

    async def story() -> None:
        channel = Channel(ours, lambda frame, fds: frames.append((frame, fds)), closed.append)
        await asyncio.to_thread(write, theirs)
        theirs.close()
        async with asyncio.timeout(60):
            while not closed:
                await asyncio.sleep(0.001)
        assert not channel.send({"too": "late"})

    asyncio.run(story())
    return frames, closed


def test_descriptors_stay_with_their_frame():
    read_end, write_end = os.pipe()

    def write(sock: socket.socket) -> None:
        local.send(sock, {"n": 1})
        local.send(sock, {"n": 2}, (write_end,))
        local.send(sock, {"n": 3})

    frames, _ = talk(write)
    assert [frame["n"] for frame, _ in frames] == [1, 2, 3]
    assert [len(fds) for _, fds in frames] == [0, 1, 0]
    (fd,) = frames[1][1]
    assert not os.get_inheritable(fd)
    for each in (fd, read_end, write_end):
        os.close(each)


@given(st.binary(min_size=1, max_size=80))
def test_garbage_closes_the_channel_and_nothing_else(data):
    frames, closed = talk(lambda sock: sock.sendall(data))
    assert len(closed) == 1
    assert all(isinstance(frame, dict) for frame, _ in frames)


def test_an_oversized_frame_is_refused():
    _, closed = talk(lambda sock: sock.sendall(struct.pack("<I", local.MAX_FRAME_BYTES + 1)))
    assert "at most" in closed[0]


def test_a_slow_reader_gets_everything():
    ours, theirs = socket.socketpair()
    big = {"x": "y" * 3_000_000}

    async def story() -> None:
        channel = Channel(ours, lambda *_: None, lambda _why: None)
        fd = os.open(os.devnull, os.O_RDONLY)
        assert channel.send(big, (fd,))
        assert channel.send({"last": True})
        os.close(fd)

        def read() -> list:
            return [local.recv(theirs), local.recv(theirs)]

        (first, fds), (second, _) = await asyncio.to_thread(read)
        assert (first, second, len(fds)) == (big, {"last": True}, 1)
        os.close(fds[0])
        channel.close()

    asyncio.run(story())
    theirs.close()


# -- inside the worker --


@pytest.fixture
def worker():
    """A runtime as a worker has it, with the agent's end of its link."""
    board = Board(1)
    board.reset(0, rank=0, generation=1)
    agent, link = socket.socketpair()
    agent.settimeout(60)
    frame = {"rank": 0, "local_rank": 0, "world_size": 1, "generation": 1, "resume_step": None}
    made = runtime.Runtime(link, frame, BoardLine(board.fd, 0), [])
    yield types.SimpleNamespace(runtime=made, agent=agent, board=board)
    agent.close()
    link.close()
    board.close()


def test_marks_ring_once(worker):
    worker.runtime.mark("entered")
    worker.runtime.mark("entered")
    worker.runtime.mark("rendezvous_begun")
    assert [local.recv(worker.agent)[0] for _ in range(2)] == [{"mark": "entered"}, {"mark": "rendezvous_begun"}]
    assert worker.board.account(0).entered_at is not None


@pytest.mark.parametrize("is_known", [False, True])
def test_modules_are_told_once_in_a_run(worker, is_known):
    worker.runtime.process = types.SimpleNamespace(known=frozenset(), env_when_parked=dict(os.environ))
    worker.runtime.are_modules_known = is_known
    worker.runtime.step_done(0)
    worker.runtime.mark("entered")
    told = []
    while told[-1:] != [{"mark": "entered"}]:
        told.append(local.recv(worker.agent)[0])
    assert [list(frame) for frame in told] == [["mark"], *([] if is_known else [["modules", "changed"]]), ["mark"]]


def test_nothing_waits_for_an_agent_that_does_not_read(worker):
    for _ in range(20_000):
        worker.runtime._rung.clear()
        worker.runtime.mark("entered")
    assert worker.board.num_faults(0) > 0, "doorbells that did not fit are counted"


def test_a_lost_agent_is_no_trouble(worker):
    worker.agent.close()
    worker.runtime.mark("entered")
    worker.runtime.report_fault("here", "why")
    worker.runtime.step_done(0)
    with pytest.raises(runtime.ArenaRefused):
        worker.runtime.request_arena(4096)


def test_arena_answers(worker):
    fd = os.open(os.devnull, os.O_RDONLY)
    local.send(worker.agent, {"memory": "granted", "bytes": 1}, (fd,))
    os.close(fd)
    os.close(worker.runtime.request_arena(1))
    local.send(worker.agent, {"memory": "refused", "why": "full", "free_bytes": 3})
    with pytest.raises(runtime.ArenaRefused) as refused:
        worker.runtime.request_arena(1)
    assert (refused.value.why, refused.value.free_bytes) == ("full", 3)


def test_memory_that_comes_late_costs_that_question_only(worker, monkeypatch):
    monkeypatch.setattr(runtime, "_ARENA_TIMEOUT_S", 0.05)
    with pytest.raises(runtime.ArenaRefused, match="did not answer within"):
        worker.runtime.request_arena(1)
    fd = os.open(os.devnull, os.O_RDONLY)

    def answer() -> None:
        for num_bytes in (1, 2):
            local.send(worker.agent, {"memory": "granted", "bytes": num_bytes}, (fd,))

    late = threading.Timer(0.3, answer)  # far above the limit
    late.start()
    os.close(worker.runtime.request_arena(2, is_patient=True))
    late.join()
    os.close(fd)


def test_fault_reports_are_limited_and_counted(worker):
    for _ in range(50):
        worker.runtime.report_fault("hook", "x" * 10_000)
    worker.agent.settimeout(0.05)
    received = [local.recv(worker.agent)[0] for _ in range(runtime.MAX_FAULT_REPORTS)]
    with pytest.raises(TimeoutError):
        local.recv(worker.agent)
    assert len(received[0]["fault"]["why"]) == 2000
    assert worker.board.num_faults(0) == 50


def test_a_child_of_the_rank_has_no_runtime(worker, monkeypatch):
    monkeypatch.setattr(runtime, "_current", worker.runtime)
    assert runtime.current() is worker.runtime
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert runtime.current() is None


class Optimizer:
    pass


def test_steps_of_one_optimizer_are_counted(worker):
    counter = hooks.StepCounter(worker.runtime)
    generator, discriminator = Optimizer(), Optimizer()
    for _ in range(3):
        counter(generator, (), {})
        counter(discriminator, (), {})
    assert (worker.board.account(0).first_step, worker.board.account(0).last_step) == (0, 2)
    del generator
    counter(discriminator, (), {})
    assert worker.board.account(0).last_step == 3
    worker.runtime.own_steps()
    counter(discriminator, (), {})
    assert worker.board.account(0).last_step is None


def test_a_failing_hook_is_swallowed_and_told(worker, monkeypatch):
    monkeypatch.setattr(worker.runtime, "step_done", lambda _step: 1 / 0)
    hooks.StepCounter(worker.runtime)(Optimizer(), (), {})
    assert "ZeroDivisionError" in local.recv(worker.agent)[0]["fault"]["why"]


def test_hooks_wait_for_torch_without_importing_it(worker, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name == "torch" or name.startswith("torch.")]:
        monkeypatch.delitem(sys.modules, name)
    package = tmp_path / "torch" / "optim"
    package.mkdir(parents=True)
    (tmp_path / "torch/__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "optimizer.py").write_text(
        "hooks = []\nregister_optimizer_step_post_hook = hooks.append\n"
        "register_optimizer_step_pre_hook = hooks.append\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    try:
        hooks.install(worker.runtime)
        assert "torch" not in sys.modules
        module = __import__("torch.optim.optimizer", fromlist=["hooks"])
        assert len(module.hooks) == 2
        assert module.__loader__.get_source("torch.optim.optimizer").startswith("hooks = []")
    finally:
        sys.meta_path[:] = finders
        for name in [name for name in sys.modules if name == "torch" or name.startswith("torch.")]:
            del sys.modules[name]


def test_a_frame_that_is_no_assignment_says_so():
    for frame in ({}, {"rank": "x"}, {"do": "assign", "rank": None}):
        with pytest.raises(assignment.AssignmentError):
            assignment.parse(frame)
