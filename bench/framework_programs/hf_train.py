"""Hugging Face's Trainer with a DeepSpeed configuration: a small Llama, dropout, gradient accumulation."""

import argparse
import math

import torch
from deepspeed.accelerator import get_accelerator
from told import OUT, Steps, Text
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from everstep.integrations.transformers import attach

parser = argparse.ArgumentParser()
parser.add_argument("--zero", type=int, default=2)
parser.add_argument("--keep", default="state")
parser.add_argument("--steps", type=int, default=30)
args = parser.parse_args()
torch.set_num_threads(1)
get_accelerator()


class Samples(Text):
    """As the Trainer wants them."""

    def __getitem__(self, index):
        x, _ = super().__getitem__(index)
        return {"input_ids": x, "labels": x}


class Losses(TrainerCallback):
    """A line per step, with the gradient norm where there is no loss."""

    def __init__(self):
        self.steps = Steps()

    def on_step_begin(self, _args, state, _control, **_kwargs):
        self.steps.before(state.global_step)

    def on_log(self, _args, state, _control, logs=None, **_kwargs):
        if "loss" in (logs or {}):
            self.steps.after(state.global_step - 1, logs["loss"] + logs.get("grad_norm", math.nan) * 1e-9)


deepspeed = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": args.zero},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}
arguments = TrainingArguments(
    output_dir=str(OUT / "trainer"),
    max_steps=args.steps,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    learning_rate=1e-3,
    warmup_steps=5,
    bf16=True,
    use_cpu=True,
    deepspeed=deepspeed,
    logging_steps=1,
    save_strategy="steps" if args.keep == "own" else "no",
    save_steps=5,
    report_to=[],
    disable_tqdm=True,
    seed=11,
)
config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    attention_dropout=0.1,
    pad_token_id=None,
)
torch.manual_seed(5)
losses = Losses()
trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Samples(), callbacks=[losses])
if args.keep == "state":
    trainer = attach(trainer)
has_checkpoint = args.keep == "own" and any((OUT / "trainer").glob("checkpoint-*/trainer_state.json"))
trainer.train(resume_from_checkpoint=has_checkpoint or None)
losses.steps.after(999, sum(p.double().sum().item() for p in trainer.model_wrapped.parameters()))
torch.distributed.barrier()
