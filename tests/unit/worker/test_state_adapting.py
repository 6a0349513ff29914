"""What stands for frameworks' optimizers and engines: live tensors, loaded in place, and the next step is the same.

The classes here have the names of DeepSpeed's and Megatron's and keep fp32 masters as those do; real ones are killed in
`tests/integration/program/test_integrations_frameworks.py`.
"""

import copy
import sys
import types

import pytest
import torch

from everstep.worker.snapshots.adapting import adapted


def kind(name: str, *bases: type) -> type:
    module, _, short = name.rpartition(".")
    return type(short, bases, {"__module__": module})


MEGATRON = "megatron.core.optimizer.optimizer."
ds_base = kind("deepspeed.runtime.base_optimizer.DeepSpeedOptimizer")
ds_zero = kind("deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer", ds_base)
ds_zero3 = kind("deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3", ds_base)
ds_engine = kind("deepspeed.runtime.engine.DeepSpeedEngine")
mc_base = kind(MEGATRON + "MegatronOptimizer")
mc_float16 = kind(MEGATRON + "Float16OptimizerWithFloat16Params", mc_base)
mc_chained = kind(MEGATRON + "ChainedOptimizer", mc_base)


class Scaler:
    def __init__(self) -> None:
        self.cur_scale = 1.0

    def state_dict(self):
        return {"scale": self.cur_scale}

    def load_state_dict(self, state):
        self.cur_scale = state["scale"]


def masters_of(seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(5, requires_grad=True), torch.randn(3, requires_grad=True)]


def zero(seed: int):
    wrapper = ds_zero()
    wrapper.single_partition_of_fp32_groups = masters_of(seed)
    wrapper.optimizer = torch.optim.AdamW([{"params": [m]} for m in wrapper.single_partition_of_fp32_groups], lr=0.1)
    wrapper.loss_scaler = Scaler()
    return wrapper, wrapper.single_partition_of_fp32_groups


def zero3(seed: int):
    wrapper = ds_zero3()
    wrapper.fp32_partitioned_groups_flat = masters = masters_of(seed)
    wrapper.optimizer = torch.optim.AdamW([{"params": [m]} for m in masters], lr=0.1)
    for group in wrapper.optimizer.param_groups:
        group["params"] = []  # they are there only while it steps
    wrapper.loss_scaler = Scaler()
    return wrapper, masters


def float16(seed: int):
    wrapper, masters = mc_float16(), masters_of(seed)
    wrapper.optimizer = torch.optim.AdamW(masters, lr=0.1)
    wrapper.config, wrapper.grad_scaler = object(), Scaler()
    return wrapper, masters


def chained(seed: int):
    parts = [float16(seed), float16(seed + 1)]
    wrapper, stub = mc_chained(), mc_float16()
    stub.is_stub_optimizer = True
    wrapper.chained_optimizers = [parts[0][0], stub, parts[1][0]]
    return wrapper, parts[0][1] + parts[1][1]


def parts_of(wrapper) -> list:
    return [each for each in getattr(wrapper, "chained_optimizers", [wrapper]) if hasattr(each, "optimizer")]


def step(wrapper, masters, number: int) -> None:
    torch.manual_seed(number)
    for master in masters:
        master.grad = torch.randn_like(master)
    for part in parts_of(wrapper):
        groups = part.optimizer.param_groups
        are_away = not groups[0]["params"]
        for group, master in zip(groups, masters, strict=False) if are_away else ():
            group["params"] = [master]
        part.optimizer.step()
        for group in groups if are_away else ():
            group["params"] = []
        scaler = getattr(part, "loss_scaler", None) or part.grad_scaler
        scaler.cur_scale *= 2


def places(value) -> set[int]:
    if isinstance(value, torch.Tensor):
        return {value.untyped_storage().data_ptr()}
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return set().union(*map(places, inner))


MAKERS = [zero, zero3, float16, chained]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("has_stepped", [False, True])
def test_the_step_after_a_restore_is_that_of_the_run_that_was_not_interrupted(make, has_stepped):
    wrapper, masters = make(1)
    for number in range(3):
        step(wrapper, masters, number)
    saved = copy.deepcopy(adapted(wrapper).state_dict())
    step(wrapper, masters, 3)

    fresh, theirs = make(2)
    if has_stepped:  # as DeepSpeed does, to make the moments
        step(fresh, theirs, 9)
    addresses = [each.data_ptr() for each in theirs]
    adapted(fresh).load_state_dict(saved)
    assert [each.data_ptr() for each in theirs] == addresses
    step(fresh, theirs, 3)
    assert all(map(torch.equal, masters, theirs))
    for part, same in zip(parts_of(wrapper), parts_of(fresh), strict=True):
        scalers = [vars(each.get("loss_scaler") or each["grad_scaler"]) for each in (vars(part), vars(same))]
        assert scalers[0] == scalers[1]


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_packed_are_the_live_tensors(make):
    wrapper, masters = make(1)
    step(wrapper, masters, 0)
    packed = places(adapted(wrapper).state_dict())
    for part in parts_of(wrapper):
        moments = [value for state in part.optimizer.state.values() for value in state.values()]
        assert places(moments) <= packed
    assert places(masters) <= packed


@pytest.mark.parametrize("make", [zero, zero3, float16])
def test_the_optimizer_inside_stands_for_the_one_round_it(monkeypatch, make):
    for framework in ("deepspeed", "megatron.core"):
        monkeypatch.setitem(sys.modules, framework, types.ModuleType(framework))
    wrapper, masters = make(1)
    step(wrapper, masters, 0)
    assert places(adapted(wrapper.optimizer).state_dict()) == places(adapted(wrapper).state_dict())


def test_an_optimizer_of_the_programs_own_stays_itself():
    optimizer = torch.optim.AdamW(masters_of(1))
    assert adapted(optimizer) is optimizer


class Optioned:
    def __init__(self, **options) -> None:
        vars(self).update(options)


@pytest.mark.parametrize("name", ["use_precision_aware_optimizer", "overlap_param_gather_with_optimizer_step"])
def test_what_was_never_restored_is_refused(name):
    wrapper, _ = float16(1)
    wrapper.config = Optioned(**{name: True})
    with pytest.raises(TypeError, match=name):
        adapted(wrapper)


def test_weights_that_the_next_step_would_gather_are_gathered_once_after_a_restore():
    class Chunk(torch.nn.Linear):
        ddp_config = Optioned(overlap_param_gather=True)
        num_gathered = 0

        def start_param_sync(self, *, force_sync):
            self.num_gathered += force_sync

    wrapper, masters = float16(1)
    step(wrapper, masters, 0)
    wrapper.model_chunks = [chunk] = [Chunk(2, 1)]
    kept = adapted(wrapper)
    kept.load_state_dict(kept.state_dict())
    assert chunk.num_gathered == 0
    for _ in range(2):
        chunk(torch.ones(2))
    assert chunk.num_gathered == 1


@pytest.mark.parametrize("base", [ds_zero, ds_engine, mc_float16])
def test_a_subclass_that_is_not_known_is_refused(base):
    with pytest.raises(TypeError, match="Other"):
        adapted(kind("elsewhere.Other", base)())


def engine_of(module: torch.nn.Module, accumulate: int = 1):
    engine = ds_engine()
    engine.module, engine.optimizer = module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    engine.lr_scheduler = torch.optim.lr_scheduler.StepLR(engine.optimizer, 1, 0.5)
    engine.global_steps = engine.global_samples = engine.skipped_steps = engine.micro_steps = 0
    engine._is_gradient_accumulation_boundary = None
    engine.gradient_accumulation_steps = lambda: accumulate
    return engine


def test_an_engine_is_weights_optimizer_scheduler_and_counts():
    engine = engine_of(torch.nn.Linear(3, 2))
    for _ in range(2):
        engine.module(torch.ones(1, 3)).sum().backward()
        engine.optimizer.step()
        engine.lr_scheduler.step()
        engine.global_steps += 1
        engine.micro_steps += 1
    saved = copy.deepcopy(adapted(engine).state_dict())
    fresh = engine_of(torch.nn.Linear(3, 2))
    adapted(fresh).load_state_dict(saved)
    assert torch.equal(fresh.module.weight, engine.module.weight)
    assert fresh.optimizer.state_dict()["state"].keys() == engine.optimizer.state_dict()["state"].keys()
    assert fresh.lr_scheduler.get_last_lr() == engine.lr_scheduler.get_last_lr()
    assert (fresh.global_steps, fresh.micro_steps) == (2, 2)


@pytest.mark.parametrize(("micro_steps", "boundary"), [(1, None), (2, False), (3, None)])
def test_between_two_steps_of_the_optimizer_an_engine_has_no_state(micro_steps, boundary):
    engine = engine_of(torch.nn.Linear(3, 2), accumulate=2)
    engine.micro_steps, engine._is_gradient_accumulation_boundary = micro_steps, boundary
    with pytest.raises(RuntimeError):
        adapted(engine).state_dict()


@pytest.mark.parametrize(("micro_steps", "boundary"), [(0, None), (1, True), (2, None)])
def test_at_a_step_of_the_optimizer_it_has_one(micro_steps, boundary):
    engine = engine_of(torch.nn.Linear(3, 2), accumulate=2)
    engine.micro_steps, engine._is_gradient_accumulation_boundary = micro_steps, boundary
    assert adapted(engine).state_dict()["counts"]["micro_steps"] == micro_steps


class Shard(torch.nn.Module):
    """A layer under ZeRO 3: one parameter away, one always there."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.away = torch.nn.Parameter(torch.empty(0))
        self.there = torch.nn.Parameter(torch.full((4,), value))
        self.away.ds_tensor, self.there.ds_tensor = torch.full((3,), value), torch.full((2,), value)
        self.register_buffer("mean", torch.full((2,), value))


def test_a_module_under_zero_3_is_its_parts():
    module, fresh = Shard(1.0), Shard(2.0)
    state = adapted(module).state_dict()
    assert places(state) >= places([module.away.ds_tensor, module.there.ds_tensor, module.there.data, module.mean])
    before = fresh.away.ds_tensor.data_ptr()
    adapted(fresh).load_state_dict(copy.deepcopy(state))
    assert fresh.away.ds_tensor.data_ptr() == before
    assert torch.equal(fresh.away.ds_tensor, module.away.ds_tensor)
    assert torch.equal(fresh.there, module.there)
    assert torch.equal(fresh.mean, module.mean)


@pytest.mark.parametrize("name", ["ops.adam.cpu_adam.DeepSpeedCPUAdam", "runtime.fp16.onebit.adam.OnebitAdam"])
def test_an_optimizer_that_keeps_more_than_its_state_is_refused(name):
    wrapper, masters = zero(1)
    wrapper.optimizer = kind(f"deepspeed.{name}", torch.optim.AdamW)(masters)
    with pytest.raises(TypeError, match=name):
        adapted(wrapper)
