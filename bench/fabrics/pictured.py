"""Made up: jobs that share a network, as the page of a run and `everstep fabric traffic` read them."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from everstep.analyzer.collective.folding import Folding
from everstep.fabric.locate.observations import Counted
from everstep.fabric.topology.values import Topology
from everstep.journal.beside import collectives
from everstep.journal.load import load_run
from everstep.model.collective import RankOps

MB = 1_000_000
LOOKS = 6
BEGIN = 1_800_000_000
END = BEGIN + 10 * LOOKS


def job(run_dir: Path, journal: str, *, per_s: int, title: str = "default_pg") -> None:
    """Its ranks reduce 1 MB so often each second, and tell so every ten, up to `END`."""
    run_dir.mkdir(parents=True)
    (run_dir / "journal.jsonl").write_text(journal)
    newest = load_run(run_dir / "journal.jsonl").generations[-1]
    ranks, each = sorted(newest.node_of), 10 * per_s
    folding = Folding()
    for look in range(LOOKS):
        ops = tuple((0, seq, BEGIN + seq / per_s, 0.01) for seq in range(each * look, each * (look + 1)))
        streams = [RankOps(rank=rank, kinds=(("0", "all_reduce", MB),), ops=ops, titles={"0": title}) for rank in ranks]
        folding.add(streams, at=float(BEGIN + 10 * (look + 1)), world_size=len(ranks), generation=newest.number)
    collectives.save(run_dir, folding.table())


def network(folder: Path, topology: Topology, counted: Sequence[Counted]) -> None:
    """In a run's `fabric`: the topology, and what the ports of each node counted."""
    folder.mkdir(parents=True)
    (folder / "topology.json").write_bytes(msgspec.json.encode(topology))
    for number, node in enumerate(dict.fromkeys(each.node for each in counted)):
        lines = [msgspec.json.encode(each) + b"\n" for each in counted if each.node == node]
        (folder / f"node{number}.jsonl").write_bytes(b"".join(lines))


def counts(port: str, mbit: Sequence[float | None], counter: str = "tx_bytes") -> list[Counted]:
    """A line a second up to `END`; None: nobody looked."""
    node, _, nic = port.partition(":")
    return [
        Counted(node=node, nic=nic, seconds=1.0, gap_s=1.0, at=END - len(mbit) + place + 1.0,
                grown={counter: round(rate * 1e6 / 8)})
        for place, rate in enumerate(mbit) if rate is not None
    ]  # fmt: skip
