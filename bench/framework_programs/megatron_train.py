"""Megatron-core on CPU and gloo: TP x PP x DP, its own DDP, distributed optimizer, dropout from its named generators.

Follows NVIDIA's examples/run_simple_mcore_train_loop.py.
"""

import argparse
import shutil
from pathlib import Path

import cuda_free
import torch
import torch.distributed as dist
from told import OUT, RANK, Steps, Text

cuda_free.put_in_place()
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.utils.data import DataLoader, DistributedSampler

import everstep
from everstep.integrations.data import ResumableLoader

SEQUENCE = 16
parser = argparse.ArgumentParser()
parser.add_argument("--tp", type=int, default=1)
parser.add_argument("--pp", type=int, default=1)
parser.add_argument("--dtype", default="bf16")
parser.add_argument("--plain-optimizer", action="store_true")
parser.add_argument("--overlap", action="store_true")
parser.add_argument("--keep", default="state")
parser.add_argument("--steps", type=int, default=30)
args = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
parallel_state.initialize_model_parallel(args.tp, args.pp)
torch.manual_seed(123)
model_parallel_cuda_manual_seed(123)
dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[args.dtype]
precision = {"bf16": args.dtype == "bf16", "fp16": args.dtype == "fp16", "params_dtype": dtype}
config = TransformerConfig(
    num_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    use_cpu_initialization=True,
    pipeline_model_parallel_size=args.pp,
    tensor_model_parallel_size=args.tp,
    hidden_dropout=0.1,
    attention_dropout=0.1,
    pipeline_dtype=dtype,
    bias_dropout_fusion=False,
    gradient_accumulation_fusion=False,
    masked_softmax_fusion=False,
    **precision,
)
bare = GPTModel(
    config=config,
    transformer_layer_spec=get_gpt_layer_local_spec(),
    vocab_size=64,
    max_sequence_length=SEQUENCE,
    pre_process=parallel_state.is_pipeline_first_stage(),
    post_process=parallel_state.is_pipeline_last_stage(),
).to(dtype)
ddp = DistributedDataParallelConfig(
    grad_reduce_in_fp32=True,
    overlap_grad_reduce=args.overlap,
    overlap_param_gather=args.overlap,
    use_distributed_optimizer=not args.plain_optimizer,
)
model = DistributedDataParallel(config=config, ddp_config=ddp, module=bare)
choices = OptimizerConfig(
    optimizer="adam",
    lr=1e-3,
    min_lr=1e-5,
    weight_decay=0.01,
    clip_grad=1.0,
    use_distributed_optimizer=not args.plain_optimizer,
    overlap_param_gather=args.overlap,
    initial_loss_scale=2.0**24,
    loss_scale_window=4,
    hysteresis=1,
    **precision,
)
optimizer = get_megatron_optimizer(choices, [model])
scheduler = OptimizerParamScheduler(
    optimizer,
    init_lr=0.0,
    max_lr=1e-3,
    min_lr=1e-5,
    lr_warmup_steps=80,
    lr_decay_steps=3200,
    lr_decay_style="cosine",
    start_wd=0.01,
    end_wd=0.01,
    wd_incr_steps=3200,
    wd_incr_style="constant",
)
sampler = DistributedSampler(
    Text(SEQUENCE + 1),
    num_replicas=parallel_state.get_data_parallel_world_size(),
    rank=parallel_state.get_data_parallel_rank(),
    seed=5,
)
loader = DataLoader(Text(SEQUENCE + 1), batch_size=8, sampler=sampler)
forward_backward = get_forward_backward_func()
bare.config.finalize_model_grads_func = finalize_model_grads
bare.config.grad_scale_func = optimizer.scale_loss
steps = Steps()
tensor, pipeline = (getattr(parallel_state, f"get_{kind}_model_parallel_rank")() for kind in ("tensor", "pipeline"))
PARAMETERS = f"parameters-{tensor}-{pipeline}.pt"


def forward_step(batches, stage):
    x, y = next(batches)
    mask = torch.tril(torch.ones(SEQUENCE, SEQUENCE)).view(1, 1, SEQUENCE, SEQUENCE) < 0.5
    out = stage(x, torch.arange(SEQUENCE).expand(x.shape), mask, labels=y)

    def loss_of(out):
        loss = out.float().mean()
        return loss, {"lm loss": loss.detach()}

    return out, loss_of


def train_one(step, batch):
    steps.before(step)
    if args.overlap and model.remove_forward_pre_hook_handles and not steps.is_begun:
        model.disable_forward_pre_hook(param_sync=False)  # as Megatron-LM's training.py does in its first iteration
    model.zero_grad_buffer()
    optimizer.zero_grad()
    losses = forward_backward(
        forward_step_func=forward_step,
        data_iterator=iter(zip(batch[0].chunk(2), batch[1].chunk(2), strict=True)),
        model=[model],
        num_microbatches=2,
        seq_length=SEQUENCE,
        micro_batch_size=4,
        decoder_seq_length=SEQUENCE,
        forward_only=False,
    )
    _, norm, _ = optimizer.step()
    scheduler.step(increment=8)
    losses = [float(each["lm loss"]) for each in losses]
    steps.after(step, sum(losses) if losses else norm or -1.0)
    if args.overlap and not model.remove_forward_pre_hook_handles:
        model.enable_forward_pre_hook()
    steps.is_begun = True


def save(step):
    """In Megatron's format `torch`; its newer one stands still in the first save without CUDA."""
    folder, last = OUT / "checkpoints" / str(step), OUT / "checkpoints" / "latest"
    if RANK == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    dist.barrier()
    state = {"model": bare.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    torch.save({**state, "step": step}, folder / f"rank-{RANK}.pt")
    optimizer.save_parameter_state(str(folder / PARAMETERS))
    dist.barrier()
    if RANK == 0:
        last.with_suffix(".new").write_text(str(folder))
        last.with_suffix(".new").replace(last)


def load():
    last = OUT / "checkpoints" / "latest"
    if not last.exists():
        return 0
    folder = Path(last.read_text())
    found = torch.load(folder / f"rank-{RANK}.pt", weights_only=False)
    bare.load_state_dict(found["model"], strict=False)
    optimizer.load_state_dict(found["optimizer"])
    states = [each for one in optimizer.chained_optimizers for each in one.optimizer.state.values()]
    for each in states:  # Megatron's loader knows the state of Apex's Adam; torch's has its count of steps there
        each.pop("step", None)
    with torch.no_grad():  # in fp32 it writes into the parameters themselves
        optimizer.load_parameter_state(str(folder / PARAMETERS))
    for each in states:
        each["step"] = torch.tensor(float(found["step"] + 1))
    scheduler.load_state_dict(found["scheduler"])
    return found["step"] + 1


if args.keep in ("none", "own"):
    first = load() if args.keep == "own" else 0
    for step, batch in zip(range(args.steps), loader, strict=False):
        if step < first:
            continue
        train_one(step, batch)
        if args.keep == "own" and step % 5 == 4:
            save(step)
else:
    data = ResumableLoader(loader)
    if args.keep == "state_of":
        import everstep.integrations.megatron

        state = everstep.integrations.megatron.state_of([model], optimizer, scheduler, data=data)
    else:
        objects = {"model": model, "scheduler": scheduler}
        inner = optimizer.chained_optimizers[0].optimizer
        kept = inner if args.keep == "module" else optimizer
        if args.keep != "weights":  # what is forgotten then: masters and moments
            objects["optimizer"] = kept
        state = everstep.State(**objects, data=data)
    for step, batch in zip(state.steps(args.steps), data.forever(), strict=False):
        train_one(step, batch)
if args.overlap:
    model.disable_forward_pre_hook()
steps.after(999, sum(parameter.double().sum().item() for parameter in bare.parameters()))
dist.barrier()
dist.destroy_process_group()
