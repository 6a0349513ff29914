"""What is said of an Accelerator that accelerate's launcher did not prepare."""

from types import SimpleNamespace

import pytest

from everstep.worker.hooks import accelerator


def made(num_processes: int) -> SimpleNamespace:
    return SimpleNamespace(num_processes=num_processes, mixed_precision="no", gradient_accumulation_steps=1)


@pytest.fixture
def environ(tmp_path) -> dict[str, str]:
    return {"HF_HOME": str(tmp_path)}


@pytest.fixture
def configured(tmp_path, environ) -> dict[str, str]:
    file = tmp_path / "accelerate/default_config.yaml"
    file.parent.mkdir()
    file.write_text("mixed_precision: bf16\n")
    return environ


@pytest.mark.parametrize("variables", [{}, {"ACCELERATE_MIXED_PRECISION": "bf16"}])
def test_ranks_that_share_nothing_are_always_reported(environ, variables):
    assert "2 trainings" in accelerator.advice(made(1), 2, environ | variables, is_set=True)


@pytest.mark.parametrize("world_size", [1, 2])
def test_what_the_launcher_or_the_program_sets_is_not_missing(environ, world_size):
    assert not accelerator.advice(made(world_size), world_size, environ | {"ACCELERATE_DYNAMO_MODE": "x"}, is_set=False)
    assert not accelerator.advice(made(world_size), world_size, environ, is_set=True)


def test_settings_that_nobody_made_are_reported(environ):
    assert "mixed_precision=no" in accelerator.advice(made(2), 2, environ, is_set=False)


def test_a_config_file_that_is_not_read_is_named(configured):
    assert str(accelerator.config_file(configured)) in accelerator.advice(made(2), 2, configured, is_set=True)
    assert not accelerator.advice(made(2), 2, configured | {"ACCELERATE_USE_CPU": "True"}, is_set=True)
