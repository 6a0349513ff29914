"""Codes of what a node notices about itself by measuring, letter M: counters, states and limits, where no log line
speaks.

Lines of the kernel log have the codes of their signatures instead. Each code has a component, a severity and an
action here once, so that no sense can make up its own. Called by `probes.node`; `report.parts.codes` prints the pages.
"""

import dataclasses

from everstep.knowledge.signature import Action
from everstep.model.code import Code
from everstep.model.verdict import Blame


@dataclasses.dataclass(frozen=True, slots=True)
class Sensed:
    """What goes into an `Alert` beside its sentence."""

    component: str
    blame: Blame
    severity: str  # "fault", "error", "warning", as in facts.Alert
    action: Action
    role: str = "root"


_RECORDS = "Puts it on record as a warning."
_DRAINS = "Reports an error of this node: the run leaves the node when it can."
_REPLACES = "Reports a fault of this node: the run replaces it."
_POSSIBLE_CAUSE = (
    "Reports it as a possible cause of what fails. The Xid with it says whether the device needs a reset "
    "(48, 63, 64, 94, 95): an error that was contained needs none."
)
_MACHINE, _NETWORK, _STORAGE, _USER = Blame.MACHINE, Blame.NETWORK, Blame.STORAGE, Blame.USER
_MONITOR, _RESET, _DRAIN = Action.MONITOR, Action.RESET_GPU, Action.DRAIN_AND_RESTART_NODE

_ROWS: tuple[tuple[str, str, Sensed, str, str, str, str], ...] = (
    # code, name, sensed, means, everstep_does, confirm, you_do
    (
        "ES-M00",
        "alerts-left-out",
        Sensed("everstep", Blame.UNKNOWN, "warning", _MONITOR, "either"),
        "A node had more to report in one minute than is passed on; the number left out is in the sentence.",
        _RECORDS,
        "nodes/<node>/agent.log in the run directory; dmesg.",
        "Look at what repeats: it is usually one fault seen by many counters.",
    ),
    (
        "ES-M01",
        "accelerator-memory-uncorrectable",
        Sensed("gpu", _MACHINE, "error", _MONITOR, "either"),
        "The counter of uncorrectable memory errors of an accelerator grew while the run was going.",
        _POSSIBLE_CAUSE,
        "nvidia-smi -q -d ECC; amd-smi metric --ecc; npu-smi info -t ecc -i N.",
        "Reset the device when it is idle. Again on the same one: have it replaced.",
    ),
    (
        "ES-M02",
        "row-remap-failed",
        Sensed("gpu", _MACHINE, "fault", Action.REPLACE_NODE),
        "A GPU has no spare rows left for a bank of its memory, or replacing one failed.",
        _REPLACES,
        "nvidia-smi -q -d ROW_REMAPPER shows Remapping Failure Occurred: Yes.",
        "Return the GPU; the vendor takes it back on this flag.",
    ),
    (
        "ES-M03",
        "row-remap-pending",
        Sensed("gpu", _MACHINE, "warning", _RESET),
        "A memory row of a GPU is to be replaced by a spare one, which happens at the next reset.",
        _RECORDS,
        "nvidia-smi -q -d ROW_REMAPPER shows Pending: Yes.",
        "Reset the GPU between two jobs.",
    ),
    (
        "ES-M04",
        "accelerator-slowed-down",
        Sensed("gpu", _MACHINE, "warning", _MONITOR, "either"),
        "An accelerator lowers its clock because of heat or of its power supply, at several looks in a row.",
        _RECORDS,
        "nvidia-smi -q -d PERFORMANCE: HW Slowdown, HW Thermal Slowdown, HW Power Brake Slowdown.",
        "Cooling, fans, power supply, the power limit of the rack.",
    ),
    (
        "ES-M05",
        "nvlink-down",
        Sensed("gpu", _MACHINE, "error", _RESET),
        "A link between GPUs that was active is not any more.",
        _DRAINS,
        "nvidia-smi nvlink -s; nvidia-smi nvlink -e.",
        "Reset all GPUs of the node. Again: have the board inspected.",
    ),
    (
        "ES-M06",
        "accelerator-lost",
        Sensed("gpu", _MACHINE, "fault", Action.REBOOT_NODE),
        "An accelerator that was there does not answer its driver any more, or is gone from the list.",
        _REPLACES,
        "nvidia-smi -L; lspci; dmesg | grep -i 'fallen off'.",
        "Restart the machine. Again: have the device inspected.",
    ),
    (
        "ES-M07",
        "accelerator-too-hot",
        Sensed("gpu", _MACHINE, "warning", _MONITOR, "either"),
        "An accelerator is as hot as the limit at which it slows itself down.",
        _RECORDS,
        "nvidia-smi -q -d TEMPERATURE.",
        "Cooling, fans, the neighbours in the rack.",
    ),
    (
        "ES-M08",
        "nvlink-errors",
        Sensed("gpu", _MACHINE, "warning", _MONITOR, "either"),
        "Error counters of a link between GPUs grew: packets were sent again, or the link recovered.",
        _RECORDS,
        "nvidia-smi nvlink -e.",
        "When it grows steadily: reset the GPUs, have the connector inspected.",
    ),
    (
        "ES-M09",
        "accelerator-unhealthy",
        Sensed("npu", _MACHINE, "error", _DRAIN),
        "The vendor's own tool calls an accelerator unhealthy, or warns of something.",
        _DRAINS + " What the tool only warns of is a warning.",
        "npu-smi info; npu-smi info -t health -i N; amd-smi monitor.",
        "The tool's error code says more; reset or replace the device.",
    ),
    (
        "ES-M10",
        "fabric-port-down",
        Sensed("nic", _NETWORK, "error", Action.CHECK_NETWORK),
        "An InfiniBand or RoCE port that was active is not any more.",
        _DRAINS + " The first one in five minutes is only a warning.",
        "ibstat; cat /sys/class/infiniband/*/ports/*/state.",
        "Cable, transceiver, port of the switch.",
    ),
    (
        "ES-M11",
        "fabric-port-flapping",
        Sensed("nic", _NETWORK, "error", Action.CHECK_NETWORK),
        "An InfiniBand or RoCE port went down and came up again several times.",
        _DRAINS + " The first one in five minutes is only a warning.",
        "cat /sys/class/infiniband/*/ports/*/counters/link_downed, a few minutes apart.",
        "Cable, transceiver, port of the switch.",
    ),
    (
        "ES-M12",
        "fabric-port-errors",
        Sensed("nic", _NETWORK, "warning", Action.CHECK_NETWORK, "either"),
        "Error counters of an InfiniBand or RoCE port grow faster than on a healthy link.",
        _RECORDS,
        "perfquery -x; cat /sys/class/infiniband/*/ports/*/counters/*.",
        "Clean or replace the cable; compare with the switch's counters.",
    ),
    (
        "ES-M13",
        "interface-down",
        Sensed("nic", _NETWORK, "error", Action.CHECK_NETWORK),
        "A network interface that was up is down, or is gone.",
        _DRAINS + " The first one in five minutes is only a warning.",
        "ip link; ethtool NAME.",
        "Cable, transceiver, port of the switch; or an operator took it down.",
    ),
    (
        "ES-M14",
        "interface-flapping",
        Sensed("nic", _NETWORK, "error", Action.CHECK_NETWORK),
        "The carrier of a network interface was lost and came back several times.",
        _DRAINS + " The first one in five minutes is only a warning.",
        "cat /sys/class/net/NAME/carrier_changes, a few minutes apart.",
        "Cable, transceiver, port of the switch.",
    ),
    (
        "ES-M15",
        "interface-errors",
        Sensed("nic", _NETWORK, "warning", Action.CHECK_NETWORK, "either"),
        "A network interface counts more damaged packets, or drops more of them, than a healthy one does.",
        _RECORDS,
        "ip -s link show NAME; ethtool -S NAME.",
        "Damaged packets: the cable. Dropped ones: ring sizes, flow control, an overloaded receiver.",
    ),
    (
        "ES-M20",
        "memory-corrected",
        Sensed("host_memory", _MACHINE, "warning", _MONITOR, "either"),
        "A memory module has errors that were corrected, more than a good one has.",
        _RECORDS,
        "grep . /sys/devices/system/edac/mc/mc*/dimm*/dimm_ce_count; ras-mc-ctl --errors.",
        "Replace the module at the next maintenance.",
    ),
    (
        "ES-M21",
        "memory-uncorrected",
        Sensed("host_memory", _MACHINE, "fault", Action.REPLACE_NODE),
        "The main memory had an error that could not be corrected.",
        _REPLACES,
        "grep . /sys/devices/system/edac/mc/mc*/*ue_count; dmesg | grep -i 'hardware error'.",
        "Replace the module before the machine is used again.",
    ),
    (
        "ES-M22",
        "disk-stalled",
        Sensed("disk", _MACHINE, "error", _DRAIN),
        "A disk has requests in flight and has finished none of them for a long time.",
        _DRAINS,
        "cat /sys/block/NAME/stat twice; dmesg.",
        "Controller, cable, the drive itself; for a network disk the server.",
    ),
    (
        "ES-M23",
        "disk-failing",
        Sensed("disk", _MACHINE, "warning", _DRAIN),
        "A drive's own check (SMART) says that it fails, or that its spare blocks are used up.",
        "Puts it on record as a warning; the kernel's lines show what a failing drive does to the run.",
        "smartctl -a /dev/NAME.",
        "Replace the drive.",
    ),
    (
        "ES-M24",
        "filesystem-full",
        Sensed("storage", _USER, "warning", Action.CHECK_STORAGE, "either"),
        "A filesystem that the run writes to has next to no room or no inodes left.",
        _RECORDS,
        "df -h; df -i.",
        "Make room: old checkpoints, logs, core dumps.",
    ),
    (
        "ES-M25",
        "filesystem-read-only",
        Sensed("storage", _MACHINE, "error", _DRAIN),
        "A filesystem that was writable is read-only now; the kernel does that after an error.",
        _DRAINS + " One that the run does not write to is only a warning.",
        "grep ' ro,' /proc/mounts; dmesg.",
        "Look at the disk below it, then check the filesystem.",
    ),
    (
        "ES-M26",
        "filesystem-hangs",
        Sensed("storage", _STORAGE, "error", Action.CHECK_STORAGE),
        "A filesystem does not answer: asking for its free space did not return.",
        _DRAINS + " One that the run does not write to is only a warning.",
        "timeout 5 df PATH; processes in state D.",
        "Its server, or the disk below it.",
    ),
    (
        "ES-M27",
        "machine-check-counted",
        Sensed("cpu", _MACHINE, "error", _DRAIN, "either"),
        "The CPUs' counter of machine-check exceptions grew. The kernel log says which part reported what.",
        _DRAINS,
        "grep MCE /proc/interrupts; dmesg | grep -i 'machine check'; ras-mc-ctl --errors.",
        "Have the machine inspected: CPU, memory module or bus.",
    ),
    (
        "ES-M30",
        "memory-low",
        Sensed("host_memory", _USER, "warning", Action.CHECK_ENVIRONMENT, "either"),
        "The machine, or the cgroup that the run lives in, has next to no memory left.",
        _RECORDS,
        "free -m; memory.max and memory.current of the cgroup.",
        "Lower the memory use (data-loader workers, prefetch, caches) or raise the limit.",
    ),
    (
        "ES-M31",
        "pressure",
        Sensed("host", Blame.UNKNOWN, "warning", _MONITOR, "either"),
        "For much of the last minute no task of the machine could run: all waited for memory or for disks.",
        _RECORDS,
        "cat /proc/pressure/memory /proc/pressure/io.",
        "Memory: find what uses it. Disks: find what writes, and whether a disk is slow.",
    ),
    (
        "ES-M32",
        "cgroup-out-of-memory",
        Sensed("host_memory", _USER, "warning", Action.CHECK_ENVIRONMENT, "either"),
        "The kernel ended a process in the run's cgroup for lack of memory. A rank reports this in its exit.",
        _RECORDS,
        "memory.events (or memory.oom_control) of the cgroup; dmesg.",
        "Lower the memory use (data-loader workers, prefetch, caches) or raise the limit.",
    ),
    (
        "ES-M33",
        "clock-jumped",
        Sensed("time", _MACHINE, "warning", _MONITOR, "either"),
        "The wall clock of the node was set: it moved by another amount than time passed.",
        _RECORDS,
        "chronyc tracking; journalctl -u chronyd -u systemd-timesyncd.",
        "Let a time service slew the clock instead of setting it while jobs run.",
    ),
    (
        "ES-M34",
        "clock-unsynchronised",
        Sensed("time", _MACHINE, "warning", _MONITOR, "either"),
        "The kernel says that the node's clock is no longer held by any time service, which it was before.",
        _RECORDS,
        "timedatectl; chronyc tracking.",
        "Start the time service. Logs of several nodes cannot be put in order otherwise.",
    ),
    (
        "ES-M35",
        "processes-blocked",
        Sensed("kernel", Blame.UNKNOWN, "warning", _MONITOR, "either"),
        "Processes have been in uninterruptible sleep (state D) for more than a minute without a break.",
        _RECORDS,
        "ps -eo pid,stat,wchan:32,cmd | awk '$2 ~ /D/'; cat /proc/PID/stack.",
        "The wait channel names the filesystem, disk or driver that does not answer.",
    ),
    (
        "ES-M36",
        "many-zombies",
        Sensed("kernel", _USER, "warning", Action.CHECK_ENVIRONMENT, "either"),
        "Many processes have ended and were not waited for by their parents; process numbers run out in the end.",
        _RECORDS,
        "ps -eo ppid,stat | awk '$2 ~ /Z/' | sort | uniq -c.",
        "Fix the parent; in a container start with an init process.",
    ),
    (
        "ES-M37",
        "sense-hangs",
        Sensed("host", Blame.UNKNOWN, "warning", _MONITOR, "either"),
        "A look of one of the node's senses did not return: a driver, a tool or a file of the kernel does not answer.",
        _RECORDS,
        "nodes/<node>/senses.json names it; ps -eLo pid,stat,wchan:32,comm | grep ' D'.",
        "Ask the same by hand (nvidia-smi, smartctl, df): what hangs there too needs a restart of the machine.",
    ),
    (
        "ES-M38",
        "inspection-bad",
        Sensed("host", Blame.UNKNOWN, "warning", _MONITOR, "either"),
        "A value that is inspected every minute while a job runs is outside of what `everstep check` accepts.",
        _RECORDS,
        "nodes/<node>/inspection.json in the run directory has all values; everstep check on that node.",
        "Look at the value that the sentence names; run everstep check when the node is idle.",
    ),
    (
        "ES-M39",
        "node-drained",
        Sensed("scheduler", Blame.OPERATOR, "error", _DRAIN),
        "An operator takes the node away (`everstep drain`, or a drain in Slurm); the reason is in the sentence.",
        "Replaces it by a standby at a step boundary, or when one comes; counts neither as restart nor as eviction.",
        "sinfo -R; scontrol show node NAME.",
        "Nothing. The machine itself is not held to be at fault.",
    ),
)

SENSED: dict[str, Sensed] = {row[0]: row[2] for row in _ROWS}

CODES: dict[str, Code] = {
    code: Code(
        code=code, name=name, blame=sensed.blame, means=means, everstep_does=does, confirm=confirm, you_do=you_do
    )
    for code, name, sensed, means, does, confirm, you_do in _ROWS
}
