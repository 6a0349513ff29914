"""What the check looks at is the program's: it calls nothing of it, and knows what only looks like a copy."""

import pytest
import torch
from small_training import Kit, incomplete, refused, run
from test_state import Agent
from torch import nn

import everstep


class Touchy:
    """Anything that is asked of it is an error."""

    def __init__(self) -> None:
        vars(self)["inner"] = [self]

    def _fail(self, *_: object) -> None:
        raise AssertionError("the program's own code was called")

    __getattr__ = __len__ = __iter__ = __eq__ = __bool__ = __repr__ = __call__ = _fail
    __hash__ = object.__hash__
    anything = property(_fail)


class TouchyList(list):
    __iter__ = __len__ = __getitem__ = Touchy._fail


class TouchyDict(dict):
    items = values = keys = __iter__ = __len__ = __getitem__ = Touchy._fail


def test_nothing_of_the_program_is_called_while_its_objects_are_looked_at(agent: Agent) -> None:
    agent.runtime()
    kit = Kit()
    touchy = Touchy()
    listed, named = TouchyList([touchy, kit.model]), TouchyDict({touchy: touchy, torch.zeros(3): 1})
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    run(everstep.State(model=kit.model, optimizer=kit.optimizer), kit.step)
    assert not incomplete(agent)
    assert agent.published() == 4
    assert type(listed) is TouchyList
    assert type(named) is TouchyDict
    assert deep


class SlowWeights:
    """Lookahead: weights in a list, which equal the model's own each third step."""

    def __init__(self, model: nn.Module) -> None:
        self.slow, self.num_done = [p.detach().clone() for p in model.parameters()], 0

    def update(self, model: nn.Module) -> None:
        self.num_done += 1
        if self.num_done % 3 == 0:
            with torch.no_grad():
                for slow, p in zip(self.slow, model.parameters(), strict=True):
                    slow.lerp_(p, 0.5)
                    p.copy_(slow)


def test_weights_that_are_equal_now_and_then_are_no_copies(agent: Agent) -> None:
    agent.runtime()
    kit = Kit()
    slow = SlowWeights(kit.model)

    def step() -> None:
        kit.step()
        slow.update(kit.model)

    run(everstep.State(model=kit.model, optimizer=kit.optimizer), step, 3)
    refused(agent, "slow")


def test_a_class_that_calls_something_else_buffers_is_looked_at_all_the_same(agent: Agent) -> None:
    """Megatron's DistributedDataParallel does."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)
            self.buffers = self.parameters = self.modules = self.named_parameters = []

    agent.runtime()
    kit = Kit()
    odd = Odd()
    odd_optimizer = torch.optim.SGD([*odd.layer.parameters()], lr=0.1, momentum=0.9)

    def step() -> None:
        kit.step()
        odd.layer(torch.randn(2, 8)).sum().backward()
        odd_optimizer.step()

    run(everstep.State(model=kit.model, optimizer=kit.optimizer), step)
    refused(agent, "odd", "odd_optimizer")


class Fused(nn.Module):
    """Keeps two weights as one, and has both in its state dict: with a hook, as torchtitan's attention does."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Parameter(torch.randn(8, 8))
        self.register_state_dict_post_hook(self._split)

    @staticmethod
    def _split(_module: nn.Module, state: dict, prefix: str, _metadata: object) -> None:
        both = state.pop(f"{prefix}both")
        state[f"{prefix}first"], state[f"{prefix}second"] = both[:4].t().clone(), both[4:].t().clone()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.both


@pytest.mark.parametrize("is_kept", [True, False])
def test_weights_that_a_hook_rewrites(agent: Agent, is_kept: bool) -> None:
    agent.runtime()
    kit = Kit()
    kit.model = nn.Sequential(Fused(), nn.Linear(8, 4))
    kit.optimizer = torch.optim.AdamW(kit.model.parameters())
    kept = {"model": kit.model} if is_kept else {"last": kit.model[1]}
    run(everstep.State(optimizer=kit.optimizer, **kept), kit.step)
    if is_kept:
        assert not incomplete(agent)
    else:
        refused(agent, "kit.model", "1 tensor")


class Schedules:
    """Keeps of its schedulers what they can be computed from."""

    def __init__(self, *schedulers) -> None:
        self.schedulers = schedulers

    def state_dict(self) -> dict:
        return {"last_epoch": self.schedulers[0].last_epoch}

    def load_state_dict(self, state: dict) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_schedule_that_is_kept_as_its_place(agent: Agent, is_kept: bool) -> None:
    agent.runtime()
    kit, other = Kit(), Kit()
    schedulers = [torch.optim.lr_scheduler.StepLR(each.optimizer, 3) for each in (kit, other)]

    def step() -> None:
        for each, scheduler in zip((kit, other), schedulers, strict=True):
            each.step()
            scheduler.step()

    kept = {"schedules": Schedules(*schedulers)} if is_kept else {"one": schedulers[0]}
    both = {"model": kit.model, "optimizer": kit.optimizer, "more": other.model, "optimizer2": other.optimizer}
    run(everstep.State(**both, **kept), step)
    if is_kept:
        assert not incomplete(agent)
    else:
        refused(agent, "schedulers[1]")
