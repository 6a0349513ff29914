"""The check against real training states, run as programs run them: complete ones pass; a gap is named."""

import copy
import random

import numpy as np
import pytest
import torch
from small_training import Kit, incomplete, refused, run
from test_state import Agent
from torch import nn

import everstep
from everstep.errors import SnapshotError


def test_a_complete_state_passes_and_keeps_each_step(agent: Agent) -> None:
    agent.runtime()
    kit = Kit()
    run(everstep.State(model=kit.model, optimizer=kit.optimizer), kit.step, 40)
    assert not incomplete(agent)
    assert agent.published() == 39


def test_a_forgotten_optimizer_is_named(agent: Agent) -> None:
    agent.runtime()
    kit = Kit()
    run(everstep.State(model=kit.model), kit.step)
    refused(agent, "kit.optimizer", "AdamW")


def test_a_forgotten_model_is_named(agent: Agent) -> None:
    agent.runtime()
    kit = Kit()
    run(everstep.State(optimizer=kit.optimizer), kit.step)
    refused(agent, "kit.model")


def test_a_second_pair_is_named(agent: Agent) -> None:
    agent.runtime()
    kit, critic = Kit(), Kit()

    def step() -> None:
        kit.step()
        critic.step()

    run(everstep.State(model=kit.model, optimizer=kit.optimizer), step)
    refused(agent, "critic.optimizer", "critic.model")


def test_forgotten_buffers_of_a_frozen_model_are_named(agent: Agent) -> None:
    agent.runtime()
    kit = Kit()
    normalise = nn.BatchNorm1d(8, affine=False)

    def step() -> None:
        normalise(torch.randn(4, 8))
        kit.step()

    run(everstep.State(model=kit.model, optimizer=kit.optimizer), step)
    refused(agent, "normalise")


def test_a_frozen_teacher_need_not_be_kept(agent: Agent) -> None:
    agent.runtime()
    kit = Kit()
    teacher = copy.deepcopy(kit.model).eval().requires_grad_(False)

    def step() -> None:
        teacher(torch.randn(4, 8))
        kit.step()

    run(everstep.State(model=kit.model, optimizer=kit.optimizer), step)
    assert not incomplete(agent)


class Average:
    """An average of all weights, as people write it."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model: nn.Module) -> None:
        for name, p in model.named_parameters():
            self.shadow[name].data.mul_(0.9).add_(p.detach(), alpha=0.1)

    def state_dict(self) -> dict:
        return self.shadow

    def load_state_dict(self, state: dict) -> None:
        self.shadow = state


@pytest.mark.parametrize("kind", [Average, torch.optim.swa_utils.AveragedModel])
@pytest.mark.parametrize("is_kept", [True, False])
def test_an_average_of_weights(agent: Agent, kind: type, is_kept: bool) -> None:
    agent.runtime()
    kit = Kit()
    ema = kind(kit.model)
    update = getattr(ema, "update_parameters", None) or ema.update

    def step() -> None:
        kit.step()
        update(kit.model)

    more = {"ema": ema} if is_kept else {}
    run(everstep.State(model=kit.model, optimizer=kit.optimizer, **more), step)
    if is_kept:
        assert not incomplete(agent)
    else:
        refused(agent, "ema")


@pytest.mark.parametrize("is_kept", [True, False])
def test_an_average_that_begins_late(agent: Agent, is_kept: bool) -> None:
    agent.runtime()
    kit = Kit()
    ema = torch.optim.swa_utils.AveragedModel(kit.model)
    num_done = 0

    def step() -> None:
        nonlocal num_done
        kit.step()
        num_done += 1
        if num_done > 20:
            ema.update_parameters(kit.model)

    more = {"ema": ema} if is_kept else {}
    run(everstep.State(model=kit.model, optimizer=kit.optimizer, **more), step, 22)
    if is_kept:
        assert not incomplete(agent)
    else:
        refused(agent, "ema")


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("is_used", [True, False])
def test_a_scheduler(agent: Agent, is_kept: bool, is_used: bool) -> None:
    agent.runtime()
    kit = Kit()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(kit.optimizer, 100)

    def step() -> None:
        kit.step()
        if is_used:
            scheduler.step()

    more = {"scheduler": scheduler} if is_kept else {}
    run(everstep.State(model=kit.model, optimizer=kit.optimizer, **more), step)
    if is_kept:
        assert not incomplete(agent)
    else:  # also one that is stepped once an epoch
        refused(agent, "scheduler", "CosineAnnealingLR")


@pytest.mark.parametrize("kind", ["torch", "numpy", "python"])
@pytest.mark.parametrize("is_kept", [True, False])
def test_a_generator_of_the_program(agent: Agent, kind: str, is_kept: bool) -> None:
    class Noise:
        def __init__(self) -> None:
            self.torch, self.numpy, self.python = torch.Generator(), np.random.default_rng(2), random.Random(3)

        def draw(self) -> None:
            {
                "torch": lambda: torch.rand(1, generator=self.torch),
                "numpy": lambda: self.numpy.random(),
                "python": lambda: self.python.random(),
            }[kind]()

        def state_dict(self) -> dict:
            return {
                "torch": self.torch.get_state(),
                "numpy": self.numpy.bit_generator.state,
                "python": self.python.getstate(),
            }

        def load_state_dict(self, state: dict) -> None:
            raise NotImplementedError

    agent.runtime()
    kit, noise = Kit(), Noise()

    def step() -> None:
        kit.step()
        noise.draw()

    more = {"noise": noise} if is_kept else {}
    run(everstep.State(model=kit.model, optimizer=kit.optimizer, **more), step)
    if is_kept:
        assert not incomplete(agent)
    else:
        refused(agent, f"noise.{kind}")


def test_a_generator_of_a_loader_is_the_business_of_the_loader(agent: Agent) -> None:
    agent.runtime()
    kit = Kit()
    generator = torch.Generator()
    loader = torch.utils.data.DataLoader([1.0] * 4, shuffle=True, generator=generator)

    def step() -> None:
        list(loader)
        kit.step()

    run(everstep.State(model=kit.model, optimizer=kit.optimizer), step)
    assert not incomplete(agent)


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_scaler_in_use(agent: Agent, is_kept: bool) -> None:
    agent.runtime()
    kit = Kit()
    scaler = torch.amp.GradScaler("cpu")

    def step() -> None:
        scaler.scale(kit.model(torch.randn(4, 8)).square().mean()).backward()
        scaler.step(kit.optimizer)
        scaler.update()
        kit.optimizer.zero_grad()

    more = {"scaler": scaler} if is_kept else {}
    run(everstep.State(model=kit.model, optimizer=kit.optimizer, **more), step)
    if is_kept:
        assert not incomplete(agent)
    else:
        refused(agent, "scaler", "GradScaler")


class Masters:
    """Mixed precision by hand: bf16 weights, and an optimizer that steps float32 masters of them."""

    def __init__(self) -> None:
        self.model = nn.Linear(8, 4).bfloat16()
        self.masters = [p.detach().float().requires_grad_() for p in self.model.parameters()]
        self.optimizer = torch.optim.AdamW(self.masters)

    def step(self) -> None:
        self.model(torch.randn(4, 8).bfloat16()).float().square().mean().backward()
        for master, p in zip(self.masters, self.model.parameters(), strict=True):
            master.grad, p.grad = p.grad.float(), None
        self.optimizer.step()
        for master, p in zip(self.masters, self.model.parameters(), strict=True):
            p.data.copy_(master.data)

    def state_dict(self) -> dict:
        return {"masters": self.masters}

    def load_state_dict(self, state: dict) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("is_kept", [True, False])
def test_masters_that_no_module_has(agent: Agent, is_kept: bool) -> None:
    agent.runtime()
    kit = Masters()
    more = {"masters": kit} if is_kept else {}
    run(everstep.State(model=kit.model, optimizer=kit.optimizer, **more), kit.step)
    if is_kept:
        assert not incomplete(agent)
    else:
        refused(agent, "AdamW", "2 tensors")


def test_slices_without_padding_are_all_of_it(agent: Agent) -> None:
    """As ZeRO's optimizer keeps its partition, and its `state_dict` gives it."""

    class Flat:
        def __init__(self) -> None:
            self.flat = torch.zeros(32, requires_grad=True)
            with torch.no_grad():
                self.flat[:20] = torch.randn(20)
            self.optimizer = torch.optim.AdamW([self.flat], weight_decay=0.0)

        def step(self) -> None:
            self.flat.grad = torch.cat([torch.randn(20), torch.zeros(12)])
            self.optimizer.step()

        def state_dict(self) -> dict:
            state = self.optimizer.state.get(self.flat, {})
            return {"flat": self.flat[:20], **{k: v[:20] if v.dim() else v for k, v in state.items()}}

        def load_state_dict(self, state: dict) -> None:
            raise NotImplementedError

    agent.runtime()
    flat = Flat()
    run(everstep.State(flat=flat), flat.step)
    assert not incomplete(agent)


def test_copies_that_a_state_dict_makes_are_what_they_copy(agent: Agent) -> None:
    class Cloned:
        def __init__(self, thing) -> None:
            self.thing = thing

        def state_dict(self) -> dict:
            return copy.deepcopy(self.thing.state_dict())

        def load_state_dict(self, state: dict) -> None:
            raise NotImplementedError

    agent.runtime()
    kit = Kit()
    run(everstep.State(model=Cloned(kit.model), optimizer=Cloned(kit.optimizer)), kit.step)
    assert not incomplete(agent)


def test_a_part_of_what_an_optimizer_owns_is_not_all_of_it(agent: Agent) -> None:
    class Half:
        def __init__(self, model: nn.Module) -> None:
            self.model = model

        def state_dict(self) -> dict:
            return {"weight": self.model.weight[:4], "bias": self.model.bias}

        def load_state_dict(self, state: dict) -> None:
            raise NotImplementedError

    agent.runtime()
    kit = Kit()
    kit.model = nn.Linear(8, 16)
    kit.optimizer = torch.optim.SGD(kit.model.parameters(), lr=0.1)
    run(everstep.State(model=Half(kit.model), optimizer=kit.optimizer), kit.step)
    refused(agent, "kit.model", "1 tensor")


def test_only_steps_without_gradients_that_are_being_added_up_are_kept(agent: Agent) -> None:
    agent.runtime()
    kit = Kit()
    num_done = 0

    def step() -> None:
        nonlocal num_done
        kit.model(torch.randn(4, 8)).square().mean().backward()
        num_done += 1
        if num_done % 4 == 0:
            kit.optimizer.step()
            kit.optimizer.zero_grad()

    run(everstep.State(model=kit.model, optimizer=kit.optimizer), step, 11)
    assert agent.published() == 7
    assert [fault["where"] for fault in agent.faults()] == ["state: gradients"]
    assert not any("incomplete" in frame for frame in agent.heard)


def test_the_variable_switches_the_check_off(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERSTEP_STATE_CHECK", "off")
    agent.runtime()
    kit = Kit()
    run(everstep.State(model=kit.model), kit.step)
    assert not incomplete(agent)
    assert agent.published() == 4


def test_an_optimizer_that_comes_later_is_found(agent: Agent) -> None:
    agent.runtime()
    kit = Kit()
    later = []

    def step() -> None:
        kit.step()
        later.append(0)
        if len(later) == 7:
            kit.optimizer = torch.optim.AdamW(kit.model.parameters())

    run(everstep.State(model=kit.model, optimizer=kit.optimizer), step, 9)
    refused(agent, "kit.optimizer")


@pytest.mark.parametrize("is_other", [False, True])
def test_a_step_that_is_done_again_is_compared_with_its_record(agent: Agent, is_other: bool) -> None:
    def train(state: everstep.State, kit: Kit, num_steps: int) -> None:
        for step in state.steps(num_steps):
            if is_other and state.resumed and step == 3:
                with torch.no_grad():
                    kit.model[0].weight[0, 0] += 1e-3
            kit.step()

    agent.runtime()
    kit = Kit()
    train(everstep.State(model=kit.model, optimizer=kit.optimizer), kit, 4)
    agent.runtime(resume_step=2, generation=1)  # a rank that had done step 3 when the others fell
    kit = Kit()
    state = everstep.State(model=kit.model, optimizer=kit.optimizer)
    train(state, kit, 5)
    assert state.resumed
    assert [fault["where"] for fault in agent.faults()] == ["state: redone"] * is_other


class Casting(torch.optim.AdamW):
    """Keeps its moments in float32 beside weights in bfloat16: torch's own `load_state_dict` casts them."""

    def _init_group(self, group, *args, **kwargs):
        result = super()._init_group(group, *args, **kwargs)
        for state in self.state.values():
            state["more"] = state.setdefault("more", torch.full((3,), 0.1))
        return result


def test_a_restore_that_does_not_give_back_what_was_kept_has_failed(agent: Agent) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(4)
        model = nn.Linear(8, 4).bfloat16()
        return model, Casting(model.parameters())

    agent.runtime()
    model, optimizer = build()
    for _ in everstep.State(model=model, optimizer=optimizer).steps(3):
        model(torch.randn(2, 8).bfloat16()).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    agent.runtime(resume_step=2, generation=1)
    model, optimizer = build()
    with pytest.raises(SnapshotError):
        everstep.State(model=model, optimizer=optimizer)
    agent.faults()
    told = [frame["restore_failed"] for frame in agent.heard if "restore_failed" in frame]
    assert [each["is_unfit"] for each in told] == [True]
