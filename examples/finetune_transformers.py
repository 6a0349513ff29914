"""A Hugging Face Trainer that loses no step: the only line of everstep's is the one with `attach`.

    everstep run --nproc-per-node 2 examples/finetune_transformers.py

Kill a rank while it runs (`everstep drill kill-rank 1`): it goes on at the very next step, and the loss at the end
is the same. A tiny model and made-up text, so that it runs anywhere and downloads nothing.
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from everstep.integrations.transformers import attach

VOCABULARY, LENGTH = 64, 32


class Text(torch.utils.data.Dataset):
    """Counting in steps that differ from sample to sample: something that can be learnt."""

    def __len__(self):
        return 2048

    def __getitem__(self, index):
        ids = (torch.arange(LENGTH) * (1 + index % 7) + index) % VOCABULARY
        return {"input_ids": ids, "labels": ids}


def main():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4))
    args = TrainingArguments(
        "out", max_steps=300, per_device_train_batch_size=16, learning_rate=1e-3, logging_steps=20, save_strategy="no",
        report_to=[], disable_tqdm=True, use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    trainer = attach(Trainer(model, args, train_dataset=Text(), data_collator=torch.utils.data.default_collate))
    trainer.train()


if __name__ == "__main__":
    main()
