"""The inventory checks on files of a made-up node (another root), and the pure parts of the measuring ones.

The stand-in for NVML below has the functions of the real binding with invented values: it shows what is asked and
listed, not that a GPU answers so.
"""

import os
import random
import subprocess
import sys
import types
from pathlib import Path

import pytest

from everstep.preflight import light
from everstep.preflight.checks.reading import (
    container,
    cpu,
    devices,
    gpu,
    infiniband,
    kernel,
    memory,
    nic,
    pci,
    sensors,
    software,
    storage,
)
from everstep.preflight.checks.working.bandwidth import cores_of
from everstep.preflight.checks.working.compute import compare_digests
from everstep.preflight.checks.working.endtoend import aligned
from everstep.preflight.judge import by_limits
from everstep.preflight.result import Doing, Judgement, Result
from everstep.preflight.settings import Settings


def put(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def results(check, root: Path) -> dict[str, Result]:
    found = [item for item in check.measure(Settings(root=str(root))) if not isinstance(item, Doing)]
    names = [result.name for result in found]
    assert len(set(names)) == len(names)
    return {result.name: result for result in by_limits(found)}


@pytest.mark.parametrize("check", [gpu, infiniband, memory, nic, pci, storage])
def test_an_empty_node_has_nothing_and_nothing_of_it_is_ok(tmp_path, check):
    for result in results(check, tmp_path).values():
        assert result.verdict in (Judgement.UNSUPPORTED, Judgement.NOTED), result
        assert result.value or result.verdict is Judgement.UNSUPPORTED or result.value == 0


def test_an_infiniband_port_that_is_down_and_one_that_lost_its_link(tmp_path):
    for device, state, downed in (("mlx5_0", "4: ACTIVE", "0"), ("mlx5_1", "1: DOWN", "3")):
        base = f"/sys/class/infiniband/{device}/ports/1"
        put(
            tmp_path,
            {f"{base}/state": state, f"{base}/rate": "400 Gb/sec (4X NDR)", f"{base}/counters/link_downed": downed},
        )
    found = results(infiniband, tmp_path)
    assert found["infiniband.count"].value == 2
    assert found["infiniband.mlx5_0.1.active"].verdict is Judgement.OK
    assert found["infiniband.mlx5_1.1.active"].verdict is Judgement.WARN
    assert found["infiniband.mlx5_1.1.link_downed"].verdict is Judgement.WARN
    assert found["infiniband.mlx5_0.1.rate_gbit"].value == 400
    assert found["infiniband.mlx5_0.1.lid"].verdict is Judgement.UNSUPPORTED


def test_memory_errors_and_a_broken_page(tmp_path):
    mc = "/sys/devices/system/edac/mc/mc0"
    put(
        tmp_path,
        {f"{mc}/ce_count": "12", f"{mc}/ue_count": "1", "/proc/meminfo": "MemTotal: 100 kB\nHardwareCorrupted: 4 kB\n"},
    )
    found = results(memory, tmp_path)
    assert found["memory.edac.mc0.corrected"].verdict is Judgement.WARN
    assert found["memory.edac.mc0.uncorrected"].verdict is Judgement.BAD
    assert found["memory.hardware_corrupted_bytes"].verdict is Judgement.BAD
    assert found["memory.available_bytes"].verdict is Judgement.UNSUPPORTED


def pci_gpu(address: str, width: str = "16") -> dict[str, str]:
    base = f"/sys/bus/pci/devices/{address}"
    return {
        f"{base}/class": "0x030200", f"{base}/vendor": "0x10de", f"{base}/device": "0x2330",
        f"{base}/current_link_width": width, f"{base}/max_link_width": "16", f"{base}/numa_node": "-1",
        f"{base}/current_link_speed": "32.0 GT/s PCIe", f"{base}/max_link_speed": "32.0 GT/s PCIe",
        f"{base}/aer_dev_fatal": "Undefined 0\nTOTAL_ERR_FATAL 0\n",
    }  # fmt: skip


def test_a_gpu_on_a_narrow_link(tmp_path):
    put(tmp_path, pci_gpu("0000:1b:00.0") | pci_gpu("0000:3d:00.0", width="8") | pci_gpu("0000:4c:00.0", width="255"))
    found = results(pci, tmp_path)
    assert found["pci.nvidia_gpus"].value == 3
    assert found["pci.0000:1b:00.0.link_at_full_width"].verdict is Judgement.OK
    assert found["pci.0000:3d:00.0.link_at_full_width"].verdict is Judgement.WARN
    assert found["pci.0000:4c:00.0.link_width"].verdict is Judgement.UNSUPPORTED  # reads of a dead device are all ones
    assert found["pci.0000:1b:00.0.aer_fatal"].verdict is Judgement.OK
    assert found["pci.0000:1b:00.0.numa_node"].value is None


class FakeNVMLError(Exception):
    pass


class FakeNvml(types.SimpleNamespace):
    """Answers every function of the binding; `lost` GPUs fail as a GPU that has fallen off the bus does."""

    NVMLError = FakeNVMLError

    def __init__(self, count: int, lost: frozenset[int] = frozenset()) -> None:
        super().__init__(nvmlDeviceGetCount=lambda: count, lost=lost)

    def nvmlSystemGetDriverVersion(self):
        return "570.86"

    def nvmlSystemGetNVMLVersion(self):
        raise FakeNVMLError("Not Supported")

    def nvmlDeviceGetHandleByIndex(self, index):
        if index in self.lost:
            raise FakeNVMLError("GPU is lost")
        return index

    def nvmlDeviceGetTemperature(self, gpu_, sensor):
        return 60

    def nvmlDeviceGetTemperatureThreshold(self, gpu_, which):
        return 90

    def nvmlDeviceGetRemappedRows(self, gpu_):
        return (0, 0, 0, int(gpu_ == 2))

    def nvmlDeviceGetSerial(self, gpu_):
        raise FakeNVMLError("Not Supported")

    def __getattr__(self, name):
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)
        row = types.SimpleNamespace(
            total=1, used=1, bar1Total=1, bar1Used=1, gpu=1, memory=1, busId=b"0000:1b:00.0", violationTime=0
        )
        shapes = dict.fromkeys(("PciInfo", "MemoryInfo", "BAR1MemoryInfo", "UtilizationRates"), row)
        shapes |= {"ViolationStatus": row, "EccMode": (1, 1), "MigMode": (0, 0)}
        shapes |= {"RetiredPages": [], "ComputeRunningProcesses": []}
        return lambda *_: shapes.get(name.removeprefix("nvmlDeviceGet"), 1)


def asked(nvml, root: Path) -> dict[str, Result]:
    found = [item for item in gpu.ask_all(nvml, str(root)) if not isinstance(item, Doing)]
    return {result.name: result for result in by_limits(found)}


def test_eight_gpus_are_more_than_200_metrics(tmp_path):
    found = asked(FakeNvml(8), tmp_path)
    per_gpu = [name for name in found if name.startswith("gpu.3.")]
    assert len(per_gpu) >= 50 + 18 * 6
    assert sum(result.verdict is not Judgement.UNSUPPORTED for result in found.values()) > 1000
    assert found["gpu.3.serial"].verdict is Judgement.UNSUPPORTED
    assert found["gpu.2.remap_failure"].verdict is Judgement.BAD
    assert found["gpu.1.remap_failure"].verdict is Judgement.OK


def test_a_gpu_that_fell_off_the_bus_is_noticed(tmp_path):
    put(tmp_path, {k: v for i in range(8) for k, v in pci_gpu(f"0000:{i}b:00.0").items()})
    found = asked(FakeNvml(8, lost=frozenset({5})), tmp_path)
    assert found["gpu.5.present"].verdict is Judgement.BAD
    assert "GPU is lost" in found["gpu.5.present"].why
    assert found["gpu.all_answer"].verdict is Judgement.WARN  # a container may have been given fewer
    assert asked(FakeNvml(8), tmp_path)["gpu.all_answer"].verdict is Judgement.OK


def test_without_a_binding_gpus_are_unsupported_never_zero(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = results(gpu, tmp_path)
    assert (found["gpu.count"].verdict, found["gpu.count"].value) == (Judgement.UNSUPPORTED, None)


def test_a_mount_with_blanks_and_one_that_errors_made_read_only(tmp_path):
    rows = [
        r"30 1 8:1 / /data\040one rw,relatime - ext4 /dev/sda1 ro,errors=remount-ro",
        r"31 1 8:2 / /ok rw,relatime - ext4 /dev/sdb1 rw",
        r"32 1 0:5 / /proc rw - proc proc rw",
        "garbage",
    ]
    put(tmp_path, {"/proc/self/mountinfo": "\n".join(rows), "/data one/x": "", "/ok/x": ""})
    found = results(storage, tmp_path)
    assert found["storage./data one.remounted_read_only"].verdict is Judgement.WARN
    assert found["storage./ok.remounted_read_only"].verdict is Judgement.OK
    assert not any("/proc" in name for name in found)


def test_cores_of():
    assert cores_of("0-3,8") == [0, 1, 2, 3, 8]
    assert cores_of("") == []


def test_a_core_that_computes_otherwise_is_named():
    found = list(compare_digests("float32", {0: ["a", "a"], 1: ["a", "b"], 2: ["a", "a"]}, 512))
    assert [r.verdict for r in found] == [Judgement.BAD, Judgement.BAD]
    assert found[1].device == "cpu 1"
    assert next(compare_digests("float32", {0: ["a"]}, 512)).verdict is Judgement.NOTED


def test_training_that_parts_says_where():
    def steps(*losses):
        return {
            "steps": [{"loss": x, "gradients": "g", "parameters": "p"} for x in losses],
            "losses": [2.0, 1.0], "inference": "i",
        }  # fmt: skip

    found = {r.name: r for r in aligned([steps("a", "b"), steps("a", "c")], [0, 1])}
    assert found["endtoend.training.digest"].verdict is Judgement.BAD
    assert "step 1 in their loss" in found["endtoend.training.digest"].why
    found = {r.name: r for r in aligned([steps("a", "b"), steps("a", "b")], [0, 1])}
    assert found["endtoend.training.digest"].verdict is Judgement.OK


def test_light_inspection_imports_no_torch_and_starts_no_process():
    code = (
        "import sys; starts = ('subprocess.Popen', 'os.fork', 'os.posix_spawn');"
        "sys.addaudithook(lambda event, _: event in starts and sys.exit(3));"
        "from everstep.preflight import light; r = light.inspect(); "
        "assert len(r) > 50 and 'torch' not in sys.modules; light.inspect(r)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_light_inspection_reads_no_remote_filesystem(tmp_path):
    rows = "30 1 0:40 / /net rw - nfs4 server:/ rw\n31 1 8:1 / /here rw - ext4 /dev/sda rw"
    put(tmp_path, {"/proc/self/mountinfo": rows})
    names = {result.name for result in light.inspect(root=str(tmp_path))}
    assert any(name.startswith("storage./here.") for name in names)
    assert not any(name.startswith("storage./net.") for name in names)


FILES = {
    "/proc/cpuinfo": b"""\
processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
model name\t: AMD EPYC
stepping\t: 1
microcode\t: 0x1000065
cpu MHz\t\t: 2445.426
physical id\t: 0
core id\t\t: 0
cpu cores\t: 2
flags\t\t: fpu sse sse2 fma avx hypervisor avx2 sha_ni
bugs\t\t: sysret_ss_attrs null_seg spectre_v1
address sizes\t: 48 bits physical, 48 bits virtual
power management:

processor\t: 1
physical id\t: 0
core id\t\t: 1

""",
    "/proc/meminfo": b"""\
MemTotal:       24684096 kB
MemFree:        21808280 kB
MemAvailable:   24109964 kB
Cached:          2102688 kB
Mlocked:           13316 kB
SwapTotal:             0 kB
SwapFree:              0 kB
Dirty:                68 kB
Writeback:             0 kB
Shmem:              8788 kB
SUnreclaim:        49180 kB
PageTables:         1632 kB
CommitLimit:    12342048 kB
Committed_AS:      56360 kB
HardwareCorrupted:     0 kB
AnonHugePages:         0 kB
HugePages_Total:       0
Hugetlb:               0 kB
""",
    "/proc/vmstat": b"""\
nr_free_pages 3367352
numa_miss 0
numa_foreign 0
workingset_refault_anon 0
pswpin 0
pswpout 0
allocstall_normal 12
pgmajfault 48211
zone_reclaim_failed 0
drop_pagecache 3
oom_kill 0
compact_stall 7
compact_fail 1
thp_fault_fallback 0
""",
    "/proc/stat": b"""\
cpu  952028 225124 317177 1209297 9320 0 13011 44655 0 0
cpu0 366929 106975 147086 733323 2593 0 5783 23119 0 0
cpu1 585099 118148 170090 475973 6727 0 7227 21536 0 0
intr 12525844 0 0 14
ctxt 21265761
btime 1795344957
procs_running 1
""",
    "/proc/loadavg": b"0.04 1.06 1.64 1/86 12873\n",
    "/proc/uptime": b"13845.69 12092.97\n",
    "/proc/self/status": b"""\
Name:\tpython
State:\tR (running)
Pid:\t12877
Groups:\t0
VmRSS:\t    1696 kB
CapEff:\t000001fffeffffff
NoNewPrivs:\t0
Seccomp:\t0
Cpus_allowed_list:\t0-1
Mems_allowed_list:\t0
""",
    "/proc/self/mountinfo": b"""\
22 27 0:21 / /proc rw,relatime - proc proc rw
24 27 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw,size=12334524k,nr_inodes=3083631,mode=755
25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=24684096k
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard,resuid=65534,resgid=65534
28 27 0:25 / /mnt/my\\040data ro,nosuid,nodev,relatime - ext4 /dev/vdb ro
31 27 0:28 / /home rw,relatime - nfs4 server:/home rw,vers=4.2,addr=10.0.0.1
32 23 0:31 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw
""",
    "/proc/self/cgroup": b"9:name=systemd:/\n4:memory:/job/8b67c0f5\n2:cpu,cpuacct:/\n0::/job\n",
    "/proc/net/snmp": b"""\
Ip: Forwarding DefaultTTL InReceives InHdrErrors
Ip: 2 64 10262207 0
Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens AttemptFails EstabResets OutSegs RetransSegs InErrs
Tcp: 1 200 120000 -1 36692 406 3298 10267683 21465 0
Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors
Udp: 3969 0 0 3971 0 0
""",
    "/proc/net/netstat": b"""\
TcpExt: ListenOverflows ListenDrops TCPLostRetransmit TCPTimeouts TCPAbortOnMemory TCPMemoryPressures TCPOFOQueue
TcpExt: 0 0 51 1043 0 0 12
IpExt: InNoRoutes InTruncatedPkts
IpExt: 0 0
""",
    "/proc/modules": b"""\
nvme 61440 2 - Live 0x0000000000000000
nvidia_uvm 1540096 0 - Live 0x0000000000000000 (POE)
nvidia 56823808 35 nvidia_uvm, Live 0x0000000000000000 (POE)
""",
    "/proc/sys/kernel/tainted": b"4097\n",
    "/etc/os-release": b'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nNAME="Debian GNU/Linux"\nID=debian\n',
    "/proc/pressure/io": b"some avg10=0.00 avg60=0.00 avg300=0.00 total=0",
    "/sys/class/infiniband/mlx5_0/ports/1/rate": b"400 Gb/sec",
    "/sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error": b"1",
    "/sys/class/net/eth0/device/vendor": b"0x1af4",
    "/sys/class/net/eth0/flags": b"0x1003",
    "/sys/class/net/eth0/carrier": b"1",
    "/sys/class/net/eth0/carrier_changes": b"2",
    "/sys/class/net/eth0/speed": b"-1",
    "/sys/block/sda/stat": b"1 2 3 4 5 6 7 8 9 10 11",
    "/sys/block/sda/size": b"100",
    "/sys/devices/system/cpu/cpu0/cache/index0/size": b"32K",
    "/sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq": b"100",
    "/sys/class/hwmon/hwmon0/temp1_input": b"1",
    "/sys/class/hwmon/hwmon0/temp1_crit": b"0",
    "/sys/bus/pci/devices/0000:00:01.0/class": b"0x030200",
    "/sys/bus/pci/devices/0000:00:01.0/current_link_width": b"16",
    "/sys/bus/pci/devices/0000:00:01.0/aer_dev_fatal": b"TOTAL_ERR_FATAL 0",
    "/sys/fs/cgroup/memory.max": b"max",
    "/sys/fs/cgroup/memory.current": b"12",
}


def spoilt(content: bytes, chance: random.Random) -> bytes:
    kind = chance.randrange(6)
    if kind == 0:
        return bytes(chance.randrange(256) for _ in range(chance.randrange(60)))
    if kind == 1:
        return content[: chance.randrange(len(content) + 1)]
    if kind == 2:
        return content.replace(b" ", b"")
    if kind == 3:
        return b"9" * 40
    mixed = bytearray(content)
    for _ in range(20 if content and kind == 4 else 0):
        mixed[chance.randrange(len(mixed))] = chance.choice(b"0123456789 :-\n/xam\xff")
    return bytes(mixed)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_the_kernel_says_no_check_breaks_and_nothing_unknown_has_a_value(tmp_path, seed):
    chance = random.Random(seed)
    for path, content in FILES.items():
        place = tmp_path / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(spoilt(content, chance))
    for check in (cpu, memory, kernel, software, container, devices, pci, nic, infiniband, storage, sensors):
        found = [item for item in check.measure(Settings(root=str(tmp_path))) if not isinstance(item, Doing)]
        for result in by_limits(found):
            assert (result.value is None) == (result.verdict is Judgement.UNSUPPORTED), result
    assert light.inspect(light.inspect(root=str(tmp_path)), root=str(tmp_path))
