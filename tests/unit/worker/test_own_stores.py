"""Whose store a group of the program's meets at, and what becomes of a process that cannot have our part."""

import os
import pickle
import subprocess
import sys
from types import ModuleType

import pytest

from everstep.worker.hooks import own_stores

GIVEN = {"MASTER_PORT": "40001", "TORCHELASTIC_ERROR_FILE": "/run/errors/rank-0.json"}
INHERITED = {**GIVEN, "TORCHELASTIC_USE_AGENT_STORE": "True"}
INNER_AGENTS = {**INHERITED, "TORCHELASTIC_ERROR_FILE": "/tmp/inner/error.json"}


@pytest.mark.parametrize(
    ("port", "environ", "given", "expected"),
    [
        (29500, INHERITED, GIVEN, True),
        (40001, INHERITED, GIVEN, False),
        (29500, INNER_AGENTS, GIVEN, False),
        (29500, GIVEN, GIVEN, False),
        (29500, {**INHERITED, "TORCHELASTIC_USE_AGENT_STORE": "False"}, GIVEN, False),
        (29500, INHERITED, {}, False),
        (29500, {"TORCHELASTIC_USE_AGENT_STORE": "True"}, {}, False),
    ],
)
def test_a_port_of_the_programs_is_told_from_eversteps_and_an_inner_agents(port, environ, given, expected):
    assert own_stores.is_of_the_program(port, environ, given) is expected


def spawning() -> ModuleType:
    module = ModuleType("multiprocessing.spawn")
    module.get_preparation_data = lambda name: {"name": name}  # type: ignore[attr-defined]
    own_stores.hook_spawning(lambda: GIVEN, module)
    return module


@pytest.mark.parametrize("path", ["a path with nothing of ours", None])
def test_a_process_begins_whether_or_not_our_part_can_be_imported(path, monkeypatch):
    if path is not None:
        monkeypatch.setattr(own_stores, "__file__", f"/{path}/a/b/c/own_stores.py")
    data = pickle.dumps(spawning().get_preparation_data("p"))
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer)['name'], 'everstep' in sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-c", code], input=data, capture_output=True, timeout=60, check=True)
    assert done.stdout.decode().split() == ["p", str(path is None)]
    assert bool(done.stderr) is (path is not None)


@pytest.mark.parametrize("value", ["True", None])
@pytest.mark.parametrize("name", ["ray._private.worker", "ray"])
def test_what_ray_starts_does_not_inherit_the_agents_store(name, value, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    if value is not None:
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", value)
    worker, ray = ModuleType("ray._private.worker"), ModuleType("ray")
    worker.init = ray.init = lambda: os.environ.get("TORCHELASTIC_USE_AGENT_STORE")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray._private.worker", worker)
    monkeypatch.setitem(sys.modules, "ray", ray)
    own_stores.hook_ray(worker)
    assert sys.modules[name].init() is None
    assert os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == value
