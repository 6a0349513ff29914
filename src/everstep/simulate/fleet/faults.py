"""Kinds of faults and the published mixes of them. Data: a mix is a list of causes with how often each was seen.

What is published is a count per cause; how such a fault shows (`sign`) and whether it stays is ours, and said per line.
Sources: Llama 3 (arXiv 2407.21783, Table 5), ByteRobust (SOSP 2025, Tables 1 and 2).
"""

import enum

import msgspec

from everstep.core.restore.trust import LASTING_NAN


class Sign(enum.StrEnum):
    """How a fault shows first, which decides how soon it is seen and which event the brain gets."""

    ALERT = "alert"  # the machine says so itself: kernel log, counters
    LOST = "lost"  # the machine is gone
    EXIT = "exit"  # a rank dies and says nothing of use
    MEMORY = "memory"  # a rank is killed for lack of memory
    RAISE = "raise"  # a rank raises at a line of the program
    HANG = "hang"  # nothing moves
    SLOW = "slow"  # a machine makes the others wait
    WRONG = "wrong"  # replicas differ: silent corruption
    CHANGE = "change"  # no fault: people want other code or data


class Stays(enum.StrEnum):
    """Where a fault stays when the job is only started again."""

    NOWHERE = "nowhere"  # transient
    MACHINE = "machine"  # until the job runs without that machine
    CODE = "code"  # until the code is changed


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a mix. `count` is relative to the other lines of the mix."""

    name: str
    count: float
    sign: Sign
    stays: Stays = Stays.NOWHERE
    stays_share: float = 1.0  # of these faults, how many stay; the others are transient
    code: str = ""  # of the alert, as the machine's own senses would say it (docs/sensing.md); or what the rank says
    action: str = ""  # what that code suggests
    on: str = ""  # name under which costs know it, if not its own

    @property
    def is_machine(self) -> bool:
        return self.sign in (Sign.ALERT, Sign.LOST, Sign.SLOW, Sign.WRONG) or self.stays is Stays.MACHINE


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """`per_node_day`: faults of one machine of 8 GPUs in a day, all causes together."""

    name: str
    source: str
    per_node_day: float
    causes: tuple[Cause, ...]

    @property
    def total(self) -> float:
        return sum(cause.count for cause in self.causes)


def _machine(name: str, count: float, code: str, action: str, on: str = "") -> Cause:
    return Cause(name=name, count=count, sign=Sign.ALERT, stays=Stays.MACHINE, code=code, action=action, on=on)


LLAMA3 = Mix(
    name="llama3",
    source="Llama 3, Table 5: 419 unexpected interruptions in 54 days on 16,384 GPUs",
    per_node_day=419 / 54 / 2048,
    causes=(
        _machine("faulty GPU", 148, "ES-G79", "REBOOT_NODE", "GPU unavailable"),
        _machine("GPU HBM3 memory", 72, "ES-G48", "RESET_GPU", "GPU memory"),
        Cause(name="software bug", count=54, sign=Sign.EXIT, on="CUDA error"),
        Cause(name="network switch or cable", count=35, sign=Sign.EXIT, on="Infiniband"),
        Cause(name="unplanned host maintenance", count=32, sign=Sign.LOST, on="kernel panic"),
        _machine("GPU SRAM memory", 19, "ES-G95", "RESET_GPU", "GPU memory"),
        _machine("GPU system processor", 17, "ES-G79", "REBOOT_NODE", "GPU unavailable"),
        _machine("NIC", 7, "ES-M10", "DRAIN_AND_RESTART_NODE", "Infiniband"),
        Cause(name="NCCL watchdog timeout", count=7, sign=Sign.HANG, stays=Stays.MACHINE, stays_share=21 / 26),
        Cause(name="silent data corruption", count=6, sign=Sign.WRONG, stays=Stays.MACHINE),
        _machine("GPU thermal interface", 6, "ES-G79", "REBOOT_NODE", "GPU unavailable"),
        _machine("SSD", 3, "ES-M22", "DRAIN_AND_RESTART_NODE"),
        Cause(name="power supply", count=3, sign=Sign.LOST, on="kernel panic"),
        Cause(name="server chassis", count=2, sign=Sign.LOST, on="kernel panic"),
        _machine("IO expansion board", 2, "ES-G79", "REBOOT_NODE", "GPU unavailable"),
        Cause(name="dependency", count=2, sign=Sign.EXIT, on="external service"),
        _machine("CPU", 2, "ES-M27", "DRAIN_AND_RESTART_NODE", "kernel panic"),
        _machine("system memory", 2, "ES-M21", "REPLACE_NODE", "kernel panic"),
    ),
)
"""That software bugs and network faults pass at a restart is an assumption: the table does not say."""

BYTEROBUST = Mix(
    name="byterobust",
    source="ByteRobust, Table 1: 55,365 incidents of 778,135 jobs in three months; rate of Llama 3, as none is given",
    per_node_day=419 / 54 / 2048,
    causes=(
        Cause(name="CUDA error, machine", count=19968 * 21 / 62, sign=Sign.EXIT, stays=Stays.MACHINE, on="CUDA error"),
        Cause(
            name="CUDA error, user code",
            count=19968 * 41 / 62,
            sign=Sign.RAISE,
            stays=Stays.CODE,
            code="ES-CU04",
            on="CUDA error",
        ),
        Cause(name="CPU overload", count=6095, sign=Sign.SLOW, on="CPU overload"),
        Cause(name="CPU out of memory", count=5567, sign=Sign.MEMORY),
        Cause(name="disk full", count=2755, sign=Sign.RAISE, on="disk full"),
        Cause(name="Infiniband", count=1599, sign=Sign.EXIT),
        Cause(name="filesystem mount", count=1176, sign=Sign.RAISE),
        Cause(name="HDFS", count=1104, sign=Sign.RAISE),
        Cause(name="container", count=781, sign=Sign.LOST, on="kernel panic"),
        Cause(name="kernel panic", count=203, sign=Sign.LOST),
        _machine("GPU memory", 188, "ES-G48", "RESET_GPU"),
        Cause(name="external service", count=128, sign=Sign.RAISE),
        _machine("GPU unavailable", 76, "ES-G79", "REBOOT_NODE"),
        _machine("disk", 47, "ES-M22", "DRAIN_AND_RESTART_NODE", "GPU unavailable"),
        Cause(name="hang", count=5506, sign=Sign.HANG, stays=Stays.MACHINE, stays_share=21 / 26),
        Cause(name="MFU decline", count=442, sign=Sign.SLOW, stays=Stays.MACHINE),
        Cause(
            name="NaN", count=148, sign=Sign.WRONG, stays=Stays.MACHINE, stays_share=3 / 4, code=LASTING_NAN, on="NaN"
        ),
        Cause(name="code or data adjustment", count=9582, sign=Sign.CHANGE),
    ),
)
"""Machine or code is split as in its Table 2 (illegal memory access 21 to 41, hang 21 to 5, NaN 3 to 1). Of neither an
illegal access nor a NaN can anybody say at first whose it is, so both go through the flow."""

MIXES = {mix.name: mix for mix in (LLAMA3, BYTEROBUST)}
