"""What the tests of real runs share."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_run import Launcher, launching


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
