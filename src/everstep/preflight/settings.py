"""The user's settings as the checks get them; and how large each measurement is at each level."""

import enum

import msgspec

MIB = 1 << 20


class Level(enum.StrEnum):
    QUICK = "quick"
    FULL = "full"
    BURN_IN = "burn-in"  # a round of it: every core at once, over and over


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """`quick` ends in well under a minute on two slow cores; `full` repeats until a median is worth something."""

    matrix: int  # side of the square matrices
    products: int  # repeats per data type and process
    copy_bytes: int  # per buffer; larger than any last-level cache share
    copies: int
    device_memory_share: float  # of what is free on a GPU
    disk_bytes: int
    disk_block_bytes: int
    fsyncs: int
    network_s: float  # per direction and peer
    round_trips: int
    allreduce_bytes: int
    allreduces: int
    train_steps: int


SIZES = {
    Level.QUICK: Sizes(
        matrix=512, products=3, copy_bytes=128 * MIB, copies=4, disk_bytes=64 * MIB, disk_block_bytes=MIB, fsyncs=30,
        device_memory_share=0.1, network_s=1.0, round_trips=300, allreduce_bytes=4 * MIB, allreduces=10, train_steps=3,
    ),
    Level.FULL: Sizes(
        matrix=1024, products=20, copy_bytes=512 * MIB, copies=16, disk_bytes=1024 * MIB, disk_block_bytes=4 * MIB,
        fsyncs=300, network_s=5.0, round_trips=5000, allreduce_bytes=64 * MIB, allreduces=30, train_steps=20,
        device_memory_share=0.8,
    ),
    Level.BURN_IN: Sizes(
        matrix=1024, products=10, copy_bytes=512 * MIB, copies=8, disk_bytes=256 * MIB, disk_block_bytes=4 * MIB,
        fsyncs=50, network_s=1.0, round_trips=300, allreduce_bytes=16 * MIB, allreduces=10, train_steps=20,
        device_memory_share=0.8,
    ),
}  # fmt: skip


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    level: Level = Level.QUICK
    disk_paths: tuple[str, ...] = ()  # directories to write into; empty: no disk is measured
    peers: tuple[str, ...] = ()  # "host:port" of nodes that run `everstep check --serve`
    token: str = ""  # shared with the peers
    root: str = "/"  # another root of /proc, /sys and /dev, as containers mount the host's

    @property
    def sizes(self) -> Sizes:
        return SIZES[self.level]
