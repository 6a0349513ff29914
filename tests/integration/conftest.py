"""What the tests of real runs share."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_run import Launcher, launching

LONGEST = (
    "test_census",
    "test_gpu_rehearsal",
    "test_run_drills_silent",
    "test_agent_examining",
    "test_run_update",
    "test_unkillable",
    "test_integrations_sharded",
    "test_run_rivals",
    "test_run_slow",
    "test_run_lost_node",
    "test_integrations_transformers",
    "test_run_stores",
    "test_run_isolation",
    "test_transport_hostile",
    "test_run_phases",
    "test_run_hangs",
    "test_run_checkpoints",
    "test_run_damaged",
    "test_persist_kills",
    "test_run_alerts",
    "test_run_incidents",
    "test_integrations_tracking",
    "test_persist_dcp",
    "test_agent_persisting",
    "test_run_faults",
)
"""They go first, so that no worker ends with a long one while the other one has nothing left to do."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """Starts runs; nothing of them is left when the test ends, or it fails."""
    with launching(tmp_path) as made:
        yield made


@pytest.fixture
def only_namespaces() -> Iterator[None]:
    """Nobody else's test makes network namespaces meanwhile: some look at all of the machine's."""
    with (Path(tempfile.gettempdir()) / f"everstep-tests-{os.getuid()}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def torchrun() -> Iterator[tuple[str, ...]]:
    """A command that does what `python -m torch.distributed.run` does, without two seconds of imports each time."""
    program, name = str(Path(__file__).with_name("torchrun_nursery.py")), f"everstep-tests-torchrun-{os.getpid()}"
    with subprocess.Popen([sys.executable, program, "serve", name], stdout=subprocess.PIPE) as nursery:
        try:
            assert nursery.stdout is not None
            assert nursery.stdout.readline() == b"ready\n"
            yield (sys.executable, "-SE", program, name)
        finally:
            nursery.kill()


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small library in the place of NVIDIA's, for LD_LIBRARY_PATH; FAKE_NVML_STATE names the file that
    says what its two GPUs do. The binding is the real one."""
    pytest.importorskip("pynvml")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    source, target = Path(__file__).with_name("fake_nvml.c"), folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-Wall", "-Werror", "-shared", "-fPIC", "-o", target, source], check=True, timeout=60)
    return folder
