"""Where `everstep fabric traffic` finds the network of a run, and the jobs that share it, by default.

RUN_DIR/fabric/topology.*       what the network is, in any format that is known
RUN_DIR/fabric/*.jsonl          lines of `everstep fabric counters --every 1`, a file for each node or one for all
$EVERSTEP_HOME/fabric/          the same for all runs, where a run's directory has no topology
"""

import stat
from collections.abc import Sequence
from pathlib import Path

from everstep.fabric.topology.values import FabricError
from everstep.journal.beside import collectives
from everstep.journal.runs import home

FOLDER = "fabric"
MOST_JOBS = 16
_SAME_S = 120.0
"""Tables of collectives are written every ten seconds while a job runs."""


def topology_beside(run_dirs: Sequence[Path]) -> Path:
    """Raises FabricError: there is none, or several."""
    folders = [path / FOLDER for path in (*run_dirs, home())]
    for folder in folders:
        found = sorted(path for path in folder.glob("topology.*") if path.is_file())
        if len(found) > 1:
            raise FabricError(
                f"{folder}: {', '.join(path.name for path in found)}: which one is the network's? Keep one"
            )
        if found:
            return found[0]
    raise FabricError(
        f"the network is not known: put what describes it, in any format that `everstep fabric show` reads, at "
        f"{folders[0]}/topology.toml (or .json, .conf, .yaml, .xml)"
    )


def counters_beside(topology: Path) -> list[Path]:
    return sorted(topology.parent.glob("*.jsonl"))


def jobs_beside(run_dir: Path) -> list[Path]:
    """Other runs in the same directory, of the same user, that report collectives at the same time; newest first."""
    own = _told(run_dir)
    if own is None:
        return []
    found = []
    for path in run_dir.parent.iterdir():
        told = None if path.is_symlink() or path == run_dir else _told(path)
        if told is not None and told[1] == own[1] and abs(told[0] - own[0]) < _SAME_S:
            found.append((told[0], path))
    return [path for _, path in sorted(found, reverse=True)[:MOST_JOBS]]


def _told(run_dir: Path) -> tuple[float, int] | None:
    """When, and whose it is."""
    try:
        status = (run_dir / collectives.NAME).stat()
    except OSError:
        return None
    return (status.st_mtime, status.st_uid) if stat.S_ISREG(status.st_mode) else None
