"""A Trainer of transformers on the device, as people write it: no seed, no State, nothing of everstep.

    everstep run ... trainer_program.py FOLDER STEPS KILL_AT

Appends one JSON line per step to FOLDER/steps.jsonl. In its first life it kills itself after step KILL_AT.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

FOLDER, STEPS, KILL_AT = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
LIFE = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
stages = {"entered": time.monotonic()}


class TellSteps(TrainerCallback):  # type: ignore[misc]
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        time.sleep(0.4)  # a kill at a random moment seldom comes in the first seconds

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        line = {"at": time.monotonic(), "stages": stages, "life": LIFE, "step": state.global_step}
        with (FOLDER / "steps.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        if LIFE == 0 and state.global_step == KILL_AT:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    data = [{"input_ids": [i % 50] * 64, "labels": [i % 50] * 64} for i in range(512)]
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=256, n_layer=4, n_head=4, n_positions=64))
    output = FOLDER / "model"
    settings = TrainingArguments(
        output_dir=str(output),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        save_steps=10,
        save_total_limit=2,
        report_to=[],
        logging_steps=50,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=settings, train_dataset=data, callbacks=[TellSteps()])
    stages["trainer"] = time.monotonic()
    last = get_last_checkpoint(str(output)) if output.is_dir() else None
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main()
