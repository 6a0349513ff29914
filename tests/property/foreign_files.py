"""More readers of foreign bytes, each as one function: files beside a journal, tables and stacks, topologies,
signatures, packets of strangers, the ring of a rank, and what other programs of the machine print."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from everstep.analyzer.reading.pickled import UnreadableError
from everstep.checkpoint.persist.form.form import DamagedFileError
from everstep.checkpoint.persist.read import metadata
from everstep.engines.slurm import commands
from everstep.errors import ConfigError, EverstepError, JournalError
from everstep.evidence.tables import read_tables
from everstep.fabric.pfc.counters import read_samples
from everstep.fabric.pfc.routes import read_routes
from everstep.fabric.probing import packets, sealed
from everstep.fabric.probing.flow import Delays, Flow
from everstep.fabric.readers.find import read_topology
from everstep.fabric.topology.graph import Graph
from everstep.fabric.topology.values import FabricError
from everstep.journal.beside import collectives, live, secrets, succession
from everstep.knowledge.loading import _add_file
from everstep.notices.counts import NAME, load_counts
from everstep.probes.nccl import ring
from everstep.probes.node.accelerators import amd, ascend
from everstep.probes.node.disks import failing, parse_smart
from everstep.probes.rank import recording, stack
from everstep.probes.sense import UnsupportedError
from everstep.report.handing.masking import Mask
from everstep.report.now.collectives import render
from everstep.simulate.fleet.trace import read_trace


def beside(data: bytes, place: Path) -> None:
    """What lies beside the journal of a directory that somebody else filled."""
    folder = place / "beside"
    (folder / "variables").mkdir(parents=True, exist_ok=True)
    for name in (NAME, "progress.json", succession.NAME, collectives.NAME, "variables/v1.json", "token"):
        (folder / name).write_bytes(data)
    live.load_live(folder / "progress.json")
    known = succession.known(folder)
    if known is not None:
        known.text(time.time())
    with contextlib.suppress(JournalError):
        table = collectives.load(folder)
        assert table is None or render(table, time.time())
    load_counts(folder)
    Mask(secrets.secret_values(folder, {}))("a text with a value in it")


def tables(data: bytes, place: Path) -> None:
    """Traces of a profiler and tables of durations, by the names that they come under."""
    for name in ("rank-1.json", "durations.csv", "rank-1.jsonl"):
        path = place / name
        path.write_bytes(data)
        with contextlib.suppress(UnreadableError):
            read_tables([path], 2)


def topology(data: bytes, place: Path) -> None:
    for suffix in (".json", ".yaml", ".toml", ".conf", ".xml"):
        path = place / f"topology{suffix}"
        path.write_bytes(data)
        with contextlib.suppress(FabricError):
            Graph(read_topology(path))
    text = data.decode(errors="replace")
    for read in (read_samples, read_routes):
        with contextlib.suppress(FabricError):
            read(text, "a file")


def probes(data: bytes, place: Path) -> None:
    """Packets that anybody may send to a port of ours."""
    delays, flow = Delays(), Flow(7)
    key = sealed.key_of("a secret of this test", "r1", 0)
    for at in range(0, max(len(data), 1), packets.SIZE):
        piece = data[at : at + packets.SIZE]
        probe, echo = packets.read_probe(piece), packets.read_echo(piece)
        if probe is not None:
            delays.add(probe.sent_us, time.monotonic_ns() // 1000)
        if echo is not None:
            flow.add_echo(echo.number, echo.received, echo.late, echo.answered_us, time.monotonic_ns() // 1000)
        assert sealed.unseal(key, data[at : at + sealed.SIZE]) is None
    flow.close(time.monotonic_ns() // 1000)


def rings(data: bytes, place: Path) -> None:
    """The memory of a rank in which the plug-in of NCCL writes: two copies."""
    for after in (data, data[::-1], b"", data[: len(data) // 2]):
        with contextlib.suppress(ring.RingError):
            msgspec.json.encode(ring.parse(data, after, 1))


def unpickled(data: bytes, place: Path) -> None:
    with contextlib.suppress(DamagedFileError):
        metadata.stored_bytes(metadata.unpickle(".metadata", data))


def printed(data: bytes, place: Path) -> None:
    """By programs of this machine and of others."""
    text = data.decode(errors="replace")
    commands.parse_states(text)
    with contextlib.suppress(EverstepError):
        commands.is_of(commands.parse_fields(text), "n1")
    with contextlib.suppress(EverstepError):
        commands.parse_job(text)
    failing(parse_smart(data))
    for parse in (amd.parse_rocm_smi, ascend.parse_npu_smi):
        with contextlib.suppress(UnsupportedError):
            parse(data)
    with contextlib.suppress(recording.RecordingError):
        recording.parse(data, 1.8e9, 1.8e9 + 60)
    stack.parse(data, b"")
    stack.parse_spill(text, 1, is_running=True)
    with contextlib.suppress(ConfigError):
        read_trace(data)


def signatures(data: bytes, place: Path) -> None:
    path = place / "theirs.toml"
    path.write_bytes(data)
    _add_file(path, "theirs.toml", {}, [])  # as `load_base` does, without ours


FILES: dict[str, Callable[[bytes, Path], None]] = {
    "beside": beside,
    "tables": tables,
    "topology": topology,
    "probes": probes,
    "ring": rings,
    "metadata": unpickled,
    "printed": printed,
    "signatures": signatures,
}
