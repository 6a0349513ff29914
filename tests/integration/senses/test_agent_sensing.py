"""The node notices what is wrong with itself: real agents, real kernel logs (FIFO, file, /dev/kmsg), real faults."""

import asyncio
import json
import os
import time
from pathlib import Path

import pytest
from fake_controller import bench

from everstep.model import events
from everstep.model.actions import Inject, StartWorkers
from everstep.model.facts import Alert
from everstep.probes.oom import memory_cgroup

FRESH = {"EVERSTEP_TWINS": "off"}
LISTENS = "from everstep.worker.link.runtime import current; current()\n"  # as torch does when it is imported
XID = "NVRM: Xid (PCI:0000:{bus}:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
XID_79 = XID.format(bus=91)
LINK_DOWN = "mlx5_core 0000:17:00.0 eth4: Link down\n"
HEALTHY = "systemd[1]: Started Session 4 of User root.\nmlx5_core 0000:17:00.0 eth4: Link up\n"


def of(alerts: tuple[Alert, ...], code: str) -> list[Alert]:
    return [one for one in alerts if one.code == code]


async def alerted(made, code: str, *, skip: int = 0) -> tuple[events.NodeAlerted, Alert]:
    event = await made.controller.wait(events.NodeAlerted, lambda e: bool(of(e.alerts, code)), skip=skip)
    return event, of(event.alerts, code)[0]


async def start(made) -> None:
    """Without a store: its making imports torch, which on a busy machine takes longer than the link waits."""
    action = StartWorkers(
        why="test", node="n0", generation=0, slot=0, first_rank=0, num_ranks=1, world_size=1, num_slots=1,
        store_host="127.0.0.1", store_port=1, resume_step=None,
    )  # fmt: skip
    await made.controller.send(action)


async def listening(made, node: str = "n0") -> None:
    """The kernel log is open and its signatures are loaded."""
    file = made.run_dir / "nodes" / node / "senses.json"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if file.exists() and json.loads(file.read_text()).get("kernel log") == "":
            return
        await asyncio.sleep(0.02)
    raise AssertionError(made.agent_log())


def with_agent(tmp_path: Path, play, **env: str):
    (tmp_path / "train.py").write_text("pass")

    async def story():
        async with bench(tmp_path, "train.py", nproc=1, env={**FRESH, **env}) as made:
            return await play(made)

    return asyncio.run(story())


def test_a_kernel_line_is_an_alert_within_a_second(tmp_path):
    fifo = tmp_path / "kmsg-n0"
    os.mkfifo(fifo)

    async def told_after(made, bus: int) -> tuple[float, events.NodeAlerted, Alert]:
        skip, written_at = len(made.controller.events), time.time()
        fifo.write_text(f"<6>{HEALTHY}<3>{XID.format(bus=bus)}")
        event, xid = await alerted(made, "ES-G79", skip=skip)
        return made.controller.when(event) - written_at, event, xid

    async def play(made):
        await listening(made)
        after_s, event, xid = await told_after(made, 91)
        assert (xid.severity, xid.blame, xid.component, xid.role) == ("fault", "machine", "gpu", "root")
        assert (xid.device, xid.source, xid.action) == ("0000:91:00", "kernel log", "REBOOT_NODE")
        assert event.node == "n0"
        assert "fallen off the bus" in xid.line
        assert [one.code for one in event.alerts] == ["ES-G79"], "healthy lines are no alerts"
        for bus in (92, 93):  # the best of three, on a busy machine
            if after_s > 1.0:
                after_s = min(after_s, (await told_after(made, bus))[0])
        assert after_s <= 1.0

    with_agent(tmp_path, play, EVERSTEP_KMSG=str(tmp_path / "kmsg-{node}"))


def test_a_file_that_is_cut_and_written_anew_is_read_on_and_one_link_down_is_only_a_warning(tmp_path):
    file = tmp_path / "kmsg"
    file.write_text(XID_79 * 3)  # from before: not ours

    async def play(made):
        await listening(made)
        with file.open("a") as log:
            log.write(LINK_DOWN[:20])
            log.flush()
            log.write(LINK_DOWN[20:])
        _, first = await alerted(made, "ES-IB09")
        assert (first.severity, first.blame) == ("warning", "network")
        assert "first in five minutes" in first.sentence
        seen = len(made.controller.events)
        file.write_text(LINK_DOWN)
        _, second = await alerted(made, "ES-IB09", skip=seen)
        assert second.severity == "error"
        assert not any(of(e.alerts, "ES-G79") for e in made.controller.events if isinstance(e, events.NodeAlerted))

    with_agent(tmp_path, play, EVERSTEP_KMSG=str(file))


def test_without_a_kernel_log_the_node_says_why_and_goes_on(tmp_path):
    async def play(made):
        file = made.run_dir / "nodes" / "n0" / "senses.json"
        deadline = time.monotonic() + 30
        while not (file.exists() and "kernel log" in json.loads(file.read_text())):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        assert "No such file" in json.loads(file.read_text())["kernel log"]
        await start(made)
        ended = await made.controller.wait(events.WorkerExited)
        assert ended.exit.code == 0

    with_agent(tmp_path, play, EVERSTEP_KMSG=str(tmp_path / "none"))


@pytest.mark.skipif(not os.access("/dev/kmsg", os.W_OK), reason="/dev/kmsg cannot be written")
@pytest.mark.root
def test_the_real_kernel_log(tmp_path):
    async def play(made):
        await listening(made)
        token = f"{time.time_ns():x}"
        # A corrected error is only ever a warning: other runs on this machine hear it too.
        Path("/dev/kmsg").write_text(f"EDAC MC0: 1 CE memory read error on DIMM_{token} (channel:0 slot:0)\n")
        event = await made.controller.wait(events.NodeAlerted, lambda e: any(token in one.line for one in e.alerts))
        (found,) = [one for one in event.alerts if token in one.line]
        assert (found.code, found.severity) == ("ES-HM04", "warning")

    with_agent(tmp_path, play)


def root_of(tmp_path: Path, files: dict[str, object]) -> str:
    root = tmp_path / "root"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return str(root)


@pytest.mark.soak
def test_a_port_that_goes_down_is_reported_by_its_counters(tmp_path):
    state = "sys/class/infiniband/mlx5_0/ports/1/state"
    root = root_of(tmp_path, {state: "4: ACTIVE"})

    async def play(made):
        file = made.run_dir / "nodes" / "n0" / "senses.json"
        deadline = time.monotonic() + 30
        while not (file.exists() and json.loads(file.read_text()).get("infiniband") == ""):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        root_of(tmp_path, {state: "1: DOWN"})
        _, first = await alerted(made, "ES-M10")
        assert (first.severity, first.device) == ("warning", "mlx5_0/1")
        _, second = await made_worse(made, "ES-M10")
        assert second.severity == "error"
        assert "unsupported" in json.loads(file.read_text())["edac"]

    with_agent(tmp_path, play, EVERSTEP_NODE_ROOT=root, EVERSTEP_KMSG=str(tmp_path / "none"))


async def made_worse(made, code: str) -> tuple[events.NodeAlerted, Alert]:
    event = await made.controller.wait(
        events.NodeAlerted, lambda e: any(one.severity == "error" for one in of(e.alerts, code))
    )
    return event, of(event.alerts, code)[0]


def test_a_file_that_never_answers_keeps_nobody_from_working_or_ending(tmp_path):
    """A FIFO without a writer in the place of a file of /sys: opening it never returns."""
    root = Path(root_of(tmp_path, {"sys/class/net/eth0/flags": "0x1003"}))
    os.mkfifo(root / "sys/class/net/eth0/operstate")
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)

    async def play(made):
        await listening(made)
        file = made.run_dir / "nodes" / "n0" / "senses.json"
        deadline = time.monotonic() + 30
        while "infiniband" not in json.loads(file.read_text()):  # the sense before the one that hangs
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        fifo.write_text(XID_79)
        await alerted(made, "ES-G79")
        await start(made)
        ended = await made.controller.wait(events.WorkerExited)
        assert ended.exit.code == 0
        begun = time.monotonic()
        made.agent.terminate()
        assert await asyncio.to_thread(made.agent.wait, 20) == 0
        assert time.monotonic() - begun < 10.0

    with_agent(tmp_path, play, EVERSTEP_NODE_ROOT=str(root), EVERSTEP_KMSG=str(fifo))


def test_the_switch(tmp_path):
    async def play(made):
        await start(made)
        await made.controller.wait(events.WorkerExited)
        assert "the node does not watch itself" in made.agent_log()

    with_agent(tmp_path, play, EVERSTEP_SENSING="off")


def may_make_cgroups() -> bool:
    cgroup = memory_cgroup(os.getpid())
    return cgroup is not None and os.access(cgroup.path, os.W_OK)


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="the kernel log cannot be read")
@pytest.mark.skipif(not may_make_cgroups(), reason="memory cgroups are not writable here")
@pytest.mark.root
def test_a_real_out_of_memory_kill_names_the_rank(tmp_path):
    (tmp_path / "train.py").write_text(
        LISTENS + "import time\nprint('ready', flush=True)\nwhile True:\n    time.sleep(0.01)\n"
    )

    async def story():
        async with bench(tmp_path, "train.py", nproc=1, env=FRESH) as made:
            await listening(made)
            await start(made)
            started = await made.controller.wait(events.WorkersStarted)
            deadline = time.monotonic() + 20
            while "ready" not in made.log(0, 0):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            await made.controller.send(Inject(why="test", drill="d1", kind="oom", node="n0", rank=0, generation=0))
            event = await made.controller.wait(
                events.NodeAlerted, lambda e: any(one.rank == 0 for one in of(e.alerts, "ES-HM01"))
            )
            (killed,) = [one for one in event.alerts if one.rank == 0]
            assert killed.severity == "warning", "the rank's own end is the fault"
            assert f"rank 0, process {started.started[0].pid}" in killed.sentence

    asyncio.run(story())
