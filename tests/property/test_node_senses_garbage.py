"""Whatever stands in /sys and /proc, a sense looks, or says that it cannot tell; it never fails, and never for ever."""

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everstep.probes.node.all import standard_senses
from everstep.probes.sense import UnsupportedError

PORT = "sys/class/infiniband/mlx5_0/ports/1"
NAMES = [
    f"{PORT}/state", f"{PORT}/phys_state", f"{PORT}/counters/link_downed", f"{PORT}/counters/symbol_error",
    f"{PORT}/hw_counters/roce_slow_restart",
    "sys/class/net/eth4/operstate", "sys/class/net/eth4/flags", "sys/class/net/eth4/carrier",
    "sys/class/net/eth4/carrier_changes", "sys/class/net/eth4/statistics/rx_errors",
    "sys/class/net/eth4/statistics/tx_errors",
    "sys/devices/system/edac/mc/mc0/ce_count", "sys/devices/system/edac/mc/mc0/dimm0/dimm_ue_count",
    "sys/devices/system/edac/mc/mc0/dimm0/dimm_label",
    "sys/block/sda/stat", "proc/meminfo", "proc/interrupts", "proc/pressure/memory", "proc/pressure/io",
    "proc/self/mounts", "proc/41/stat", "proc/42/stat",
]  # fmt: skip
NUMBERS = st.integers(-5, 1 << 65).map(str)
WORDS = st.sampled_from(
    ["ACTIVE", "4: ACTIVE", "1: DOWN", "up", "down", "unknown", "0x1003", "MemTotal: 0 kB", "MemAvailable: 0 kB",
     "full avg10=0 avg60=99.9 avg300=0 total=0", "full avg60=1.2.3", "MCE: 1 2 x", "9 0 0 0 9 0 0 0 1 0 0",
     "tmpfs / tmpfs ro 0 0", "tmpfs / tmpfs rw 0 0", "server:/x /nowhere nfs4 rw 0 0", "41 (x) D 2 " + "0 " * 30]
)  # fmt: skip
TEXTS = st.one_of(NUMBERS, WORDS, st.lists(WORDS).map("\n".join)).map(str.encode) | st.binary(max_size=200)
ROOTS = st.lists(st.dictionaries(st.sampled_from(NAMES), TEXTS, max_size=len(NAMES)), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ROOTS)
def test_any_machine(rounds):
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        senses = [
            sense
            for sense in standard_senses({"EVERSTEP_NODE_ROOT": name}, written=(root,), rank_of={41: 0}.get)
            if sense.name not in ("nvml", "nvml events", "amd-smi", "npu-smi", "smart", "time service")
        ]
        for number, files in enumerate(rounds):
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(text)
            for sense in senses:
                try:
                    found = sense.look(100.0 * number)
                except UnsupportedError:
                    continue
                for one in found:
                    assert one.severity in ("fault", "error", "warning")
                    assert one.source == sense.name
                    assert one.count >= 1
        for sense in senses:
            sense.close()
