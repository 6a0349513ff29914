"""The rules of the node's senses: what is an alert, what is not, and what cannot be told."""

import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.knowledge.node_codes import CODES, SENSED
from everstep.model.facts import Alert
from everstep.probes.node.accelerators.accelerators import Accelerators, Device
from everstep.probes.node.all import standard_senses
from everstep.probes.node.clocks import ClockJumps, TimeService
from everstep.probes.node.disks import Disks
from everstep.probes.node.filesystems import Filesystems, Room, is_full, parse_mounts
from everstep.probes.node.infiniband import Infiniband
from everstep.probes.node.interfaces import Interfaces
from everstep.probes.node.kernel.memory_errors import MemoryErrors, machine_checks
from everstep.probes.node.memory import Memory, Pressure, available_share, full_percent
from everstep.probes.node.processes import MANY_ZOMBIES, Processes, parse_stat
from everstep.probes.sense import UnsupportedError


def codes(alerts: list[Alert]) -> list[str]:
    return [one.code for one in alerts]


def write(root: Path, files: dict[str, object]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


# -- what all have in common ----------------------------------------------------------------------------------------


def test_on_an_empty_machine_every_sense_says_that_it_cannot_tell(tmp_path):
    senses = standard_senses({"EVERSTEP_NODE_ROOT": str(tmp_path)}, written=(tmp_path,), rank_of=lambda pid: None)
    told = {"clock", "time service"}  # not files
    for sense in senses:
        if sense.name not in told:
            with pytest.raises(UnsupportedError, match=r"\w"):
                sense.look(0.0)
        sense.close()


def test_every_code_has_a_page_and_a_severity_that_is_known():
    assert set(CODES) == set(SENSED)
    for code, sensed in SENSED.items():
        assert sensed.severity in ("fault", "error", "warning"), code
        assert CODES[code].confirm, code
        assert CODES[code].you_do, code


def test_the_page_names_every_sense_and_every_code(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "sensing.md").read_text()
    for sense in standard_senses({}, written=(tmp_path,), rank_of=lambda pid: None):
        row = next((line for line in page.splitlines() if line.startswith(f"| `{sense.name}` |")), "")
        cadence = "1 h" if sense.every_s == 3600 else f"{sense.every_s:g} s"
        assert f"| {cadence} |" in row, sense.name
        sense.close()
    numbers = set(re.findall(r"\bM(\d\d)\b", page))
    assert {code[-2:] for code in CODES} == numbers | {"00"}


# -- accelerators ----------------------------------------------------------------------------------------------------


class Fake:
    name, component = "fake-smi", "gpu"

    def __init__(self) -> None:
        self.devices: list[Device] = []

    def read(self) -> list[Device]:
        return self.devices

    def close(self) -> None:
        pass


def gpu(**fields) -> Device:
    return Device(name="GPU 3", bus="0000:91:00", **fields)


def looks(*rounds: list[Device]) -> list[list[str]]:
    vendor = Fake()
    sense = Accelerators(vendor)
    out = []
    for at, devices in enumerate(rounds):
        vendor.devices = devices
        out.append(codes(sense.look(10.0 * at)))
    return out


def test_a_device_of_which_nothing_is_known_is_no_alert():
    assert looks([gpu()], [gpu()]) == [[], []]


def test_memory_errors_count_only_when_they_grow():
    assert looks([gpu(uncorrectable=7)], [gpu(uncorrectable=7)], [gpu(uncorrectable=9)]) == [[], [], ["ES-M01"]]
    assert looks([gpu(uncorrectable=7)], [gpu()], [gpu(uncorrectable=9)]) == [[], [], []], "a gap tells nothing"
    assert looks([gpu(uncorrectable=7)], [gpu(uncorrectable=0)]) == [[], []], "the driver was loaded again"


def test_a_failed_row_remap_is_worse_than_a_pending_one():
    assert looks([gpu(remap_pending=True)]) == [["ES-M03"]]
    assert looks([gpu(remap_pending=True, remap_failed=True)]) == [["ES-M02"]]
    assert SENSED["ES-M02"].severity == "fault"


def test_a_short_slowdown_is_ordinary_and_a_long_one_is_told():
    slow, fast = gpu(slowed_by=("heat",)), gpu(slowed_by=())
    assert looks([slow], [slow], [fast], [slow], [slow], [slow]) == [[], [], [], [], [], ["ES-M04"]]


def test_heat_needs_a_limit():
    assert looks([gpu(temperature_c=95.0)]) == [[]]
    assert looks([gpu(temperature_c=95.0, limit_c=95.0)]) == [["ES-M07"]]


def test_a_link_that_was_never_active_is_none():
    assert looks([gpu(links={0: False, 1: True})], [gpu(links={0: False, 1: False})]) == [[], ["ES-M05"]]
    assert looks([gpu(link_errors={"link 0": 5})], [gpu(link_errors={"link 0": 6})]) == [[], ["ES-M08"]]


def test_lost_and_gone():
    lost = gpu(is_lost=True)
    assert looks([gpu()], [lost]) == [[], ["ES-M06"]]
    assert looks([gpu()], [], [], [gpu()]) == [[], [], ["ES-M06"], []], "one look without it is not enough"


def test_the_vendors_own_opinion():
    assert looks([gpu(is_healthy=None)]) == [[]]
    assert looks([gpu(is_healthy=False, problem="Alarm")]) == [["ES-M09"]]
    vendor = Fake()
    vendor.devices = [gpu(problem="health Warning")]
    (warned,) = Accelerators(vendor).look(0.0)
    assert (warned.code, warned.severity) == ("ES-M09", "warning")


# -- fabric and network ----------------------------------------------------------------------------------------------


def port(state: str = "4: ACTIVE", **counters: int) -> dict[str, object]:
    base = "class/infiniband/mlx5_0/ports/1"
    files: dict[str, object] = {f"{base}/state": state, f"{base}/phys_state": "5: LinkUp"}
    return files | {f"{base}/counters/{name}": value for name, value in counters.items()}


def test_a_port_goes_down_and_comes_back(tmp_path):
    sense = Infiniband(tmp_path)
    write(tmp_path, port(link_downed=3, symbol_error=0))
    assert sense.look(0.0) == []
    write(tmp_path, port("1: DOWN"))
    (down,) = sense.look(5.0)
    assert (down.code, down.device, down.severity, down.blame) == ("ES-M10", "mlx5_0/1", "error", "network")
    write(tmp_path, port(link_downed=5))
    (flapped,) = sense.look(10.0)
    assert (flapped.code, flapped.count) == ("ES-M11", 2)
    assert sense.look(15.0) == []


def test_an_unused_port_is_no_alert_and_one_that_is_gone_is(tmp_path):
    sense = Infiniband(tmp_path)
    write(tmp_path, port("1: DOWN"))
    assert sense.look(0.0) == []
    write(tmp_path, port())
    assert sense.look(5.0) == []
    (tmp_path / "class/infiniband/mlx5_0").rename(tmp_path / "away")
    assert codes(sense.look(10.0)) == ["ES-M10"]


def test_error_counters_have_rates(tmp_path):
    sense = Infiniband(tmp_path)
    write(tmp_path, port(symbol_error=100, excessive_buffer_overrun_errors=0))
    sense.look(0.0)
    write(tmp_path, port(symbol_error=149, excessive_buffer_overrun_errors=0))
    assert sense.look(5.0) == [], "ten a second are allowed"
    write(tmp_path, port(symbol_error=200, excessive_buffer_overrun_errors=0))
    assert codes(sense.look(10.0)) == ["ES-M12"]
    write(tmp_path, port(symbol_error=200, excessive_buffer_overrun_errors=1))
    assert codes(sense.look(15.0)) == ["ES-M12"], "of these none is"


def interface(name: str = "eth4", state: str = "up", changes: int = 2, errors: int = 0, drops: int = 0):
    base = f"class/net/{name}"
    return {f"{base}/device/vendor": "0x15b3"} | made(name, state, changes, errors, drops)


def made(name: str, state: str = "up", changes: int = 2, errors: int = 0, drops: int = 0) -> dict[str, object]:
    """An interface without a device behind it: software made it."""
    base = f"class/net/{name}"
    return {
        f"{base}/operstate": state, f"{base}/carrier_changes": changes,
        f"{base}/statistics/rx_errors": errors, f"{base}/statistics/tx_errors": 0,
        f"{base}/statistics/rx_dropped": drops, f"{base}/statistics/tx_dropped": 0,
    }  # fmt: skip


def test_interfaces(tmp_path):
    sense = Interfaces(tmp_path)
    write(tmp_path, interface() | interface("eth5", "down"))
    assert sense.look(0.0) == []
    write(tmp_path, interface(state="down", changes=3))
    assert codes(sense.look(5.0)) == ["ES-M13"]
    write(tmp_path, interface(changes=6))
    assert codes(sense.look(10.0)) == ["ES-M14"]
    write(tmp_path, interface(changes=6, errors=51))
    assert codes(sense.look(15.0)) == ["ES-M15"]
    for at, drops, expected in ((20.0, 600, []), (25.0, 1200, []), (30.0, 1800, ["ES-M15"]), (35.0, 1801, [])):
        write(tmp_path, interface(changes=6, errors=51, drops=drops))
        assert codes(sense.look(at)) == expected


@pytest.mark.parametrize("name", ["veth12", "barfleet-host", "docker0", "wg7", "eno9"])
def test_what_software_made_may_go(tmp_path, name):
    sense = Interfaces(tmp_path)
    write(tmp_path, interface() | made(name))
    assert sense.look(0.0) == []
    write(tmp_path, made(name, "down"))
    assert sense.look(5.0) == []
    shutil.rmtree(tmp_path / "class/net" / name)
    assert sense.look(10.0) == []
    shutil.rmtree(tmp_path / "class/net/eth4")
    assert codes(sense.look(15.0)) == ["ES-M13"]


def test_a_pod_has_no_other_interfaces_than_those_that_software_made(tmp_path):
    sense = Interfaces(tmp_path)
    write(tmp_path, made("eth0") | made("lo", "unknown"))
    assert sense.look(0.0) == []
    write(tmp_path, made("eth0", "down"))
    assert codes(sense.look(5.0)) == ["ES-M13"]


def test_a_bond_is_the_machines_own(tmp_path):
    sense = Interfaces(tmp_path)
    write(tmp_path, interface() | made("bond0") | {"class/net/bond0/bonding/mode": "802.3ad 4"})
    assert sense.look(0.0) == []
    write(tmp_path, made("bond0", "down"))
    assert codes(sense.look(5.0)) == ["ES-M13"]


# -- memory, disks, filesystems --------------------------------------------------------------------------------------


def edac(corrected: int, uncorrected: int) -> dict[str, object]:
    base = "sys/devices/system/edac/mc/mc0"
    return {
        f"{base}/ce_count": corrected, f"{base}/ue_count": uncorrected, f"{base}/dimm0/dimm_label": "DIMM_A1",
        f"{base}/dimm0/dimm_ce_count": corrected, f"{base}/dimm0/dimm_ue_count": uncorrected,
    }  # fmt: skip


def test_memory_errors(tmp_path):
    sense = MemoryErrors(tmp_path / "sys", tmp_path / "proc")
    write(tmp_path, edac(5000, 1))
    assert sense.look(0.0) == [], "what was counted before is not ours"
    write(tmp_path, edac(5009, 1))
    assert sense.look(10.0) == []
    write(tmp_path, edac(5010, 1))
    (many,) = sense.look(20.0)
    assert (many.code, many.severity, many.device) == ("ES-M20", "warning", "mc0/DIMM_A1")
    write(tmp_path, edac(5011, 1))
    assert sense.look(4000.0) == [], "an hour later"
    write(tmp_path, edac(5011, 2))
    (lost,) = sense.look(4010.0)
    assert (lost.code, lost.severity, lost.count) == ("ES-M21", "fault", 1)


def test_machine_checks_are_summed_over_processors(tmp_path):
    table = "       CPU0   CPU1\n NMI:   1   1   Non-maskable interrupts\n MCE:   {}   2   Machine check exceptions"
    assert machine_checks(table.format(1)) == 3
    assert machine_checks("") is None
    sense = MemoryErrors(tmp_path / "sys", tmp_path / "proc")
    write(tmp_path, edac(0, 0) | {"proc/interrupts": table.format(1)})
    assert sense.look(0.0) == []
    write(tmp_path, {"proc/interrupts": table.format(2)})
    assert codes(sense.look(100.0)) == ["ES-M27"]


def disk(done: int, in_flight: int) -> dict[str, object]:
    return {"block/nvme0n1/stat": f"{done} 0 8 1 0 0 0 0 {in_flight} 5 5", "block/loop0/stat": "0 0 0 0 0 0 0 0 9 0 0"}


def disk_looks(tmp_path, *looks: tuple[float, int, int]) -> list[list[str]]:
    """Each look: seconds of the monotonic clock, requests done, in flight. The wall clock goes its own ways."""
    now = [0.0]
    sense = Disks(tmp_path, lambda: now[0])
    out = []
    for number, (at, done, in_flight) in enumerate(looks):
        now[0] = at
        write(tmp_path, disk(done, in_flight))
        out.append(codes(sense.look(1e6 * (-1) ** number * number)))
    return out


def test_a_disk_that_finishes_nothing(tmp_path):
    looks = [(0.0, 10, 4), (10.0, 11, 4), (20.0, 11, 4), (30.0, 11, 5), (40.0, 11, 5), (50.0, 12, 5), (60.0, 12, 5)]
    assert disk_looks(tmp_path, *looks) == [[], [], [], [], ["ES-M22"], [], []]


def test_idle_time_is_no_stall(tmp_path):
    """The time of a stall begins with the first look that sees a request in flight, not with the last one finished."""
    looks = [(0.0, 5, 0), (500.0, 5, 1), (510.0, 5, 1), (520.0, 5, 0), (530.0, 5, 1), (560.0, 5, 1)]
    assert disk_looks(tmp_path, *looks) == [[]] * 6


def test_a_machine_that_was_paused_has_no_stalled_disk(tmp_path):
    assert disk_looks(tmp_path, (0.0, 5, 1), (3600.0, 5, 1), (3610.0, 6, 1)) == [[]] * 3


MOUNTS = """\
/dev/nvme0n1p1 / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
/dev/sdb1 /data\\040set xfs {} 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
tmpfs /dev/shm tmpfs rw,size=1g 0 0
"""


def test_mounts():
    mounts = {mount.point: mount for mount in parse_mounts(MOUNTS.format("rw"))}
    assert set(mounts) == {"/", "/data set", "/home", "/dev/shm"}
    assert mounts["/home"].is_remote
    assert not mounts["/"].is_remote


@pytest.mark.parametrize(("written", "severity"), [("/data set/run", "error"), ("/run", "warning")])
def test_a_remount_to_read_only(tmp_path, written, severity):
    table = tmp_path / "mounts"
    sense = Filesystems((Path(written),), mounts=table, ask=lambda path: Room(free_bytes=1 << 40, total_bytes=1 << 41))
    table.write_text(MOUNTS.format("rw"))
    assert sense.look(0.0) == []
    table.write_text(MOUNTS.format("ro,errors=remount-ro"))
    (found,) = sense.look(15.0)
    assert (found.code, found.severity, found.device) == ("ES-M25", severity, "/data set")


def test_what_was_mounted_read_only_is_no_alert(tmp_path):
    table = tmp_path / "mounts"
    sense = Filesystems((Path("/data set"),), mounts=table, ask=lambda path: Room(free_bytes=0, total_bytes=1 << 30))
    table.write_text("/dev/sr0 /data\\040set xfs ro 0 0\n")
    assert sense.look(0.0) == sense.look(15.0) == []


@pytest.mark.parametrize(
    ("free", "total", "inodes", "lacks"),
    [
        (1 << 30, 1 << 40, (10, 1000), "room"),
        (20 << 30, 1 << 40, (10, 1000), ""),
        (20 << 30, 1 << 40, (9, 1000), "inodes"),
        (50 << 20, 1 << 30, (None, None), ""),
        (5 << 20, 1 << 30, (None, None), "room"),
        (0, 0, (None, None), ""),
    ],
)
def test_full(free, total, inodes, lacks):
    assert is_full(Room(free_bytes=free, total_bytes=total, free_inodes=inodes[0], total_inodes=inodes[1])) == lacks


def test_memory_and_pressure(tmp_path):
    assert available_share("MemTotal: 1000 kB\nMemAvailable: 15 kB\n") == 0.015
    assert available_share("MemTotal: 1000 kB\n") is None
    assert (
        full_percent("some avg10=9.00 avg60=9.00 avg300=0.00 total=1\nfull avg10=1.00 avg60=21.50 avg300=0.1 total=1")
        == 21.5
    )
    write(tmp_path, {"meminfo": "MemTotal: 1000 kB\nMemAvailable: 15 kB"})
    low = Memory(tmp_path, pid=-1).look(0.0)
    assert codes(low) == ["ES-M30"]
    write(tmp_path, {"pressure/memory": "full avg10=1.00 avg60=21.50 avg300=0.1 total=1"})
    assert codes(Pressure(tmp_path).look(0.0)) == ["ES-M31"]


# -- clock and processes -----------------------------------------------------------------------------------------------


def test_a_clock_that_is_set():
    wall, mono = [1000.0], [5.0]
    sense = ClockJumps(lambda: wall[0], lambda: mono[0])
    for passed, set_by, expected in ((5.0, 0.002, 0), (5.0, 3600.0, 1), (5.0, 0.0, 0), (5.0, -2.0, 1)):
        wall[0] += passed + set_by
        mono[0] += passed
        assert len(sense.look(wall[0])) == expected


def test_a_clock_that_nobody_ever_held_is_unknown_and_one_that_was_let_go_is_told():
    held = [False]
    sense = TimeService(lambda: held[0])
    with pytest.raises(UnsupportedError):
        sense.look(0.0)
    held[0] = True
    assert sense.look(1.0) == []
    held[0] = False
    assert codes(sense.look(2.0)) == ["ES-M34"]


def stat(pid: int, state: str, *, parent: int = 1, ticks: int = 5, started: int = 77, name: str = "python") -> str:
    return f"{pid} ({name}) {state} {parent} 0 0 0 0 0 0 0 0 0 {ticks} 0 0 0 0 0 0 0 {started} 0 0"


def test_blocked_for_a_minute(tmp_path):
    sense = Processes({41: 3}.get, tmp_path)
    write(tmp_path, {"41/stat": stat(41, "D"), "41/wchan": "nfs_wait_bit", "42/stat": stat(42, "D", name="a) (b")})
    assert sense.look(0.0) == []
    rank, other = sense.look(60.0)
    assert (rank.code, rank.rank) == ("ES-M35", 3)
    assert "nfs_wait_bit" in rank.sentence
    assert "a) (b (42)" in other.sentence
    write(tmp_path, {"41/stat": stat(41, "D", ticks=6), "42/stat": stat(42, "D", started=78)})
    assert sense.look(120.0) == [], "it ran in between; another process has the number"


def test_zombies_and_kernel_threads(tmp_path):
    sense = Processes(proc=tmp_path)
    write(tmp_path, {f"{n}/stat": stat(n, "Z", parent=7) for n in range(100, 100 + MANY_ZOMBIES)})
    write(tmp_path, {"50/stat": stat(50, "D", parent=2)})
    assert codes(sense.look(0.0)) == ["ES-M36"]
    assert codes(sense.look(60.0)) == ["ES-M36"], "a kernel thread that sleeps is no alert"


@given(st.text())
def test_any_text_as_a_stat_line(text):
    parse_stat(text)
    full_percent(text)
    available_share(text)
    parse_mounts(text)
    machine_checks(text)
