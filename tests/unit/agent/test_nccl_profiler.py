"""When ranks get the profiler plug-in for NCCL, and when not."""

from pathlib import Path

import pytest

from everstep.agent.processes.environment import base_environment
from everstep.agent.processes.nccl_plugin import profiler_for
from everstep.probes.nccl import plugin

ON = {"EVERSTEP_NCCL_PROFILER": "on"}


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    return tmp_path


def test_where_gpus_are(gpus: Path) -> None:
    assert profiler_for(ON, gpus) == str(plugin.path_of("x86_64"))


def test_not_without_being_asked_for(gpus: Path) -> None:
    assert profiler_for({}, gpus) == ""
    assert profiler_for({"EVERSTEP_NCCL_PROFILER": "1"}, gpus) == ""


def test_amds_library_has_a_word_of_its_own(gpus: Path) -> None:
    rccl = {"EVERSTEP_NCCL_PROFILER": "rccl"}
    assert profiler_for(rccl, gpus) == "", "NVIDIA's GPUs"
    (gpus / "dev/nvidia0").rename(gpus / "dev/kfd")
    assert profiler_for(rccl, gpus) == str(plugin.path_of("x86_64"))
    assert profiler_for(ON, gpus) == ""
    (gpus / "usr/lib").mkdir(parents=True)
    (gpus / "usr/lib/librccl-profiler.so").touch()
    assert profiler_for(rccl, gpus) == "", "RCCL would load another"


def test_not_where_no_gpu_is(gpus: Path) -> None:
    (gpus / "dev/nvidia0").rename(gpus / "dev/nvidiactl")
    assert profiler_for(ON, gpus) == ""
    assert profiler_for(ON, gpus / "missing") == ""


@pytest.mark.parametrize(
    "variable",
    [
        ("NCCL_PROFILER_PLUGIN", "mine"),
        ("NCCL_PROFILER_PLUGIN", ""),
        ("NCCL_INSPECTOR_ENABLE", "1"),
        ("EVERSTEP_NCCL_PROFILER", "off"),
    ],
)
def test_not_where_the_user_says_otherwise(gpus: Path, variable: tuple[str, str]) -> None:
    assert profiler_for(dict([*ON.items(), variable]), gpus) == ""


def test_not_where_nccl_would_load_another(gpus: Path) -> None:
    (gpus / "own").mkdir()
    assert profiler_for({**ON, "LD_LIBRARY_PATH": f"/nowhere:{gpus}/own"}, gpus)
    (gpus / "own/libnccl-profiler.so").touch()
    assert profiler_for({**ON, "LD_LIBRARY_PATH": f"/nowhere:{gpus}/own"}, gpus) == ""
    (gpus / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    assert profiler_for(ON, gpus)
    (gpus / "usr/lib/x86_64-linux-gnu/libnccl-profiler.so").touch()
    assert profiler_for(ON, gpus) == ""


def test_not_where_a_configuration_names_one(gpus: Path) -> None:
    (gpus / "etc").mkdir()
    (gpus / "etc/nccl.conf").write_text("NCCL_DEBUG=WARN\n")
    assert profiler_for(ON, gpus)
    (gpus / "etc/nccl.conf").write_text("NCCL_PROFILER_PLUGIN=/opt/other.so\n")
    assert profiler_for(ON, gpus) == ""


def test_not_on_machines_that_it_was_not_compiled_for(gpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "s390x")
    assert profiler_for(ON, gpus) == ""


def test_ranks_get_it_only_where_something_reads_it() -> None:
    assert base_environment({}, 1, "", watches=True, profiler="/p.so")["NCCL_PROFILER_PLUGIN"] == "/p.so"
    assert "NCCL_PROFILER_PLUGIN" not in base_environment({}, 1, "", watches=False, profiler="/p.so")
    assert "NCCL_PROFILER_PLUGIN" not in base_environment({}, 1, "", watches=True)
