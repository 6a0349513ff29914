"""DeepSpeed's ZeRO and Megatron-core's distributed optimizer over real kills, given to State as they are.

Skipped where the package is missing; `make frameworks` makes an environment that has them, and tries more.
"""

import importlib.util
from pathlib import Path

import pytest
from real_run import Launcher
from resuming import assert_kills_leave_no_trace

ROOT = Path(__file__).parents[3]
PROGRAMS = ROOT / "bench" / "framework_programs"

EXAMPLE = """
import builtins, runpy

def told(text, **_):
    if text.startswith("step:"): tell(int(text.split()[1]), text)

builtins.print = told
sys.argv = ["EXAMPLE", "--steps", "12"]
runpy.run_path("EXAMPLE", run_name="__main__")
end([])
"""
WITHOUT_CUDA = """
import cuda_free
cuda_free.put_in_place()
"""

MODEL = """
import everstep
import torch.distributed as dist
from everstep.integrations.data import ResumableLoader
from torch.utils.data import DataLoader, DistributedSampler

class Samples(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, index): return torch.full((6,), float(index) / 64) + torch.rand(6)
"""

DEEPSPEED = """
import deepspeed
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # it would compile for two minutes
torch.manual_seed(5)
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
model = torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.Dropout(0.2), torch.nn.Linear(40, 1))
config = {
    "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0, "steps_per_print": 1000, "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5, "warmup_max_lr": 0.01}},
    "zero_optimization": {"stage": STAGE, "stage3_param_persistence_threshold": 50},
    "zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True,
}
engine, optimizer, _, scheduler = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
data = ResumableLoader(DataLoader(Samples(), 4, sampler=DistributedSampler(Samples(), seed=3)))
torch.manual_seed(RANK)
state = everstep.State(model=engine, optimizer=optimizer, scheduler=scheduler, data=data)
for step, batch in zip(state.steps(12), data.forever()):
    loss = engine(batch.bfloat16()).float().square().mean()
    engine.backward(loss)
    engine.step()
    tell(step, loss.item().hex(), scheduler.get_last_lr())
dist.barrier()
end([getattr(p, "ds_tensor", p).float() for p in engine.module.parameters()], engine.global_steps)
"""

MEGATRON = """
import cuda_free
cuda_free.put_in_place()
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker, model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

dist.init_process_group("gloo")
parallel_state.initialize_model_parallel()
torch.manual_seed(5)
model_parallel_cuda_manual_seed(5)
bare = torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.Linear(40, 1)).bfloat16()
config = TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=1, bf16=True, params_dtype=torch.bfloat16)
ddp = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True)
model = DistributedDataParallel(config=config, ddp_config=ddp, module=bare)
optimizer = get_megatron_optimizer(OptimizerConfig(
    optimizer="adam", lr=0.01, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True), [model])
data = ResumableLoader(DataLoader(Samples(), 4, sampler=DistributedSampler(Samples(), seed=3)))
torch.manual_seed(RANK)
state = everstep.State(model=model, optimizer=optimizer, data=data)
for step, batch in zip(state.steps(12), data.forever()):
    model.zero_grad_buffer()
    optimizer.zero_grad()
    with get_cuda_rng_tracker().fork():
        batch = torch.nn.functional.dropout(batch, 0.2)
    loss = model(batch.bfloat16()).float().square().mean()
    loss.backward()
    model.finish_grad_sync()
    optimizer.step()
    tell(step, loss.item().hex())
dist.barrier()
end([p.float() for p in bare.parameters()])
"""


def has(package: str) -> bool:
    top = package.partition(".")[0]
    return importlib.util.find_spec(top) is not None and importlib.util.find_spec(package) is not None


needs_deepspeed = pytest.mark.skipif(not has("deepspeed"), reason="deepspeed is not installed")
needs_megatron = pytest.mark.skipif(not has("megatron.core"), reason="megatron-core is not installed")


def example(name: str) -> str:
    return EXAMPLE.replace("EXAMPLE", str(ROOT / "examples" / f"train_{name}.py"))


SCRIPTS = [
    pytest.param(MODEL + DEEPSPEED.replace("STAGE", "1"), id="zero-1", marks=needs_deepspeed),
    pytest.param(MODEL + DEEPSPEED.replace("STAGE", "3"), id="zero-3", marks=[needs_deepspeed, pytest.mark.soak]),
    pytest.param(MODEL + MEGATRON, id="megatron", marks=needs_megatron),
    pytest.param(example("deepspeed"), id="deepspeed's example", marks=[needs_deepspeed, pytest.mark.soak]),
    pytest.param(WITHOUT_CUDA + example("megatron"), id="megatron's example", marks=[needs_megatron, pytest.mark.soak]),
]


@pytest.mark.timeout(600)  # a start of DeepSpeed imports for half a minute on a loaded machine, and there are four
@pytest.mark.parametrize("script", SCRIPTS)
def test_masters_of_frameworks_go_on_at_the_very_next_step(launcher: Launcher, script: str) -> None:
    begin = f"sys.path.insert(0, {str(PROGRAMS)!r})\n"
    assert_kills_leave_no_trace(launcher, begin + script, kills=((3, 1), (7, 0)), num_ranks=2, limit_s=180.0)
