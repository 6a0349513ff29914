"""Megatron-core with its distributed optimizer that loses no step: the lines of everstep's are (1), (2) and (3).

    everstep run --nproc-per-node 2 examples/train_megatron.py

Kill a rank while it runs (`everstep drill kill-rank 1`): it goes on at the very next step, with the same losses.
It needs CUDA, as Megatron does.
"""

import argparse
import os

import torch
import torch.distributed as dist
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

from everstep.integrations.data import ResumableLoader  # (1)
from everstep.integrations.megatron import state_of

LENGTH, VOCABULARY, MICRO_BATCH = 32, 64, 4


class Counting(torch.utils.data.Dataset):
    """Counting in steps that differ from sample to sample: something that can be learnt."""

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        ids = (torch.arange(LENGTH + 1) * (1 + index % 7) + index) % VOCABULARY
        return ids[:-1], ids[1:]


def setup_model_and_optimizer():
    config = TransformerConfig(
        num_layers=2, hidden_size=64, num_attention_heads=4, bf16=True, params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16, use_cpu_initialization=True, gradient_accumulation_fusion=False,
        masked_softmax_fusion=False, bias_dropout_fusion=False,
    )  # fmt: skip
    spec = get_gpt_layer_local_spec()
    gpt = GPTModel(config, spec, vocab_size=VOCABULARY, max_sequence_length=LENGTH).bfloat16().cuda()
    ddp = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True)
    model = DistributedDataParallel(config=config, ddp_config=ddp, module=gpt)
    gpt.config.finalize_model_grads_func = finalize_model_grads
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam", lr=1e-3, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True,
        ),
        [model],
    )  # fmt: skip
    scheduler = OptimizerParamScheduler(
        optimizer, init_lr=0.0, max_lr=1e-3, min_lr=1e-5, lr_warmup_steps=80, lr_decay_steps=4000,
        lr_decay_style="cosine", start_wd=0.01, end_wd=0.01, wd_incr_steps=4000, wd_incr_style="constant",
    )  # fmt: skip
    return [model], optimizer, scheduler


def forward_step(batches, model):
    tokens, labels = (each.cuda() for each in next(batches))
    mask = torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH).cuda() < 0.5
    output = model(tokens, torch.arange(LENGTH).expand(tokens.shape).cuda(), mask, labels=labels)
    return output, lambda out: (out.float().mean(), {"lm loss": out.float().mean().detach()})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    parallel_state.initialize_model_parallel()
    torch.manual_seed(1)
    model_parallel_cuda_manual_seed(1)
    model, optimizer, scheduler = setup_model_and_optimizer()

    sampler = DistributedSampler(Counting(), seed=1)
    data = ResumableLoader(DataLoader(Counting(), batch_size=MICRO_BATCH, sampler=sampler))
    state = state_of(model, optimizer, scheduler, data=data)  # (2)
    for step, batch in zip(state.steps(args.steps), data.forever(), strict=False):  # (3)
        model[0].zero_grad_buffer()
        optimizer.zero_grad()
        losses = get_forward_backward_func()(
            forward_step_func=forward_step, data_iterator=iter([batch]), model=model, num_microbatches=1,
            seq_length=LENGTH, micro_batch_size=MICRO_BATCH, forward_only=False,
        )  # fmt: skip
        optimizer.step()
        scheduler.step(increment=MICRO_BATCH * dist.get_world_size())
        print(f"step: {step:5}  rank: {dist.get_rank()}  loss: {losses[0]['lm loss'].item():.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
