"""A Hugging Face Trainer over a mapped data set, as people write it: no seed, no State, nothing of everstep.

Each rank appends a line `<time> <pid> <rank> <step>` for each step. Run by trainer_start.py:

    trainer_script.py FILE STEPS OUTPUT_DIR
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

STEPS_FILE, MAX_STEPS, OUTPUT = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


class TellSteps(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        with STEPS_FILE.open("a") as file:
            file.write(f"{time.time():.4f} {os.getpid()} {os.environ['RANK']} {state.global_step}\n")
        time.sleep(0.02)


data = Dataset.from_dict({"input_ids": [[i % 50] * 16 for i in range(512)]})
data = data.map(lambda row: {"labels": row["input_ids"]})
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=32))
settings = TrainingArguments(
    output_dir=OUTPUT,
    max_steps=MAX_STEPS,
    per_device_train_batch_size=4,
    use_cpu=True,
    save_strategy="no",
    report_to=[],
    logging_steps=50,
    disable_tqdm=True,
)
Trainer(model=model, args=settings, train_dataset=data, callbacks=[TellSteps()]).train()
