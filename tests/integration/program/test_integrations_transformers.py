"""Hugging Face Trainer over kills: losses, logs, samples and parameters of a run that was never interrupted."""

import pytest
from real_run import Launcher
from resuming import Trail, assert_kills_leave_no_trace, environment, run_alone

TRAIN = """
import json
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers import EarlyStoppingCallback
import everstep.integrations.transformers as everstep_transformers

class Texts(torch.utils.data.Dataset):
    def __init__(self, size): self.size = size
    def __len__(self): return self.size
    def __getitem__(self, index):
        return {"input_ids": torch.tensor([index, 1, 2, 3, 4, 5]), "labels": torch.tensor([index, 1, 2, 3, 4, 5])}

def collate(samples):
    batch = torch.utils.data.default_collate(samples)
    batch["labels"] = batch["labels"].masked_fill(torch.rand(batch["labels"].shape) < 0.2, -100)  # as masks are drawn
    return batch

class Telling(Trainer):
    def training_step(self, model, inputs, *args):
        loss = super().training_step(model, inputs, *args)
        ids = inputs["input_ids"][:, 0].tolist()
        tell(f"{self.state.global_step}:{min(ids)}", *ids, int(inputs["labels"].eq(-100).sum()), loss.item().hex())
        return loss

torch.manual_seed(1)
model = GPT2LMHeadModel(GPT2Config(vocab_size=60, n_positions=8, n_embd=16, n_layer=1, n_head=2))
args = TrainingArguments(
    "out", num_train_epochs=3, per_device_train_batch_size=4, gradient_accumulation_steps=2, logging_steps=3,
    eval_strategy="steps", eval_steps=4, report_to=[], use_cpu=True, disable_tqdm=True,
    learning_rate=1e-3, warmup_steps=3, MORE
)
trainer = Telling(model, args, data_collator=collate, train_dataset=Texts(44), eval_dataset=Texts(8))
everstep_transformers.attach(trainer)
began = time.time()
result = trainer.train(resume_from_checkpoint=os.environ.get("RESUME"))
trainer.save_metrics("train", result.metrics)
trainer.save_state()
steps = trainer.state.global_step - getattr(trainer, "_initial_global_step", 0)

def timeless(found):
    "Everything that it reports. Times are other times; what they say of this training must be true."
    if isinstance(found, list):
        return [timeless(each) for each in found]
    if not isinstance(found, dict):
        return found
    if "train_steps_per_second" in found:
        seconds = found["train_runtime"]
        assert abs(found["train_steps_per_second"] * seconds - steps) < 0.001 * seconds + 0.1, (found, steps)
        assert seconds > 0.03 * steps, "each step takes longer"
    timed = ("_runtime", "_per_second")
    return {name: "a time" if name.endswith(timed) else timeless(value) for name, value in sorted(found.items())}

written = {str(file): timeless(json.loads(file.read_text())) for file in sorted(Path("out").rglob("*.json"))
           if file.name in ("train_results.json", "all_results.json", "trainer_state.json")}
end(model.parameters(), trainer.state.global_step, json.dumps(
    [timeless(result._asdict()), timeless(trainer.state.log_history), written]))
"""


def test_trainer_goes_on_at_the_very_next_step(launcher: Launcher) -> None:
    text = TRAIN.replace("MORE", "save_strategy='no', include_num_input_tokens_seen='all'")
    assert_kills_leave_no_trace(launcher, text, kills=((2, 0), (8, 0)))


@pytest.mark.soak
@pytest.mark.parametrize(
    "more",
    [
        "save_strategy='steps', save_steps=5, logging_steps=4, load_best_model_at_end=False",
        "save_strategy='no', logging_steps=0.2, eval_steps=0.4, include_num_input_tokens_seen='non_padding'",
        "save_strategy='epoch', logging_strategy='epoch', eval_strategy='epoch', load_best_model_at_end=True",
    ],
)
def test_what_the_trainer_reports_is_of_the_whole_training(launcher: Launcher, more: str) -> None:
    text = TRAIN.replace("logging_steps=3,", "").replace('eval_strategy="steps", eval_steps=4,', "")
    if "eval_strategy" not in more:
        more += ", eval_strategy='steps'"
    assert_kills_leave_no_trace(launcher, text.replace("MORE", more), kills=((3, 0), (11, 0)))


@pytest.mark.soak
@pytest.mark.parametrize("more", ["max_steps=15, save_strategy='no'", "dataloader_num_workers=1, save_strategy='no'"])
def test_trainer_on_two_ranks(launcher: Launcher, more: str) -> None:
    text = TRAIN.replace("MORE", more)
    if "workers" in more:  # what a worker process draws cannot be put back
        text = text.replace("torch.rand(batch", "torch.ones(batch")
    assert_kills_leave_no_trace(launcher, text, kills=((2, 1), (5, 0)), num_ranks=2)


@pytest.mark.soak
def test_trainer_that_began_from_its_own_checkpoint(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    text = TRAIN.replace("MORE", "save_strategy='steps', save_steps=4")
    run_alone(launcher, text, "before")
    assert (launcher.folder / "out/checkpoint-4").is_dir()
    monkeypatch.setenv("RESUME", "out/checkpoint-4")
    trail = assert_kills_leave_no_trace(launcher, text, kills=((6, 0), (10, 0)))
    assert min(int(step.split(":")[0]) for step in trail.steps(0)) == 4


@pytest.mark.soak
def test_trainer_goes_on_from_a_checkpoint_on_disk(launcher: Launcher) -> None:
    text = TRAIN.replace("MORE", "save_strategy='no', num_train_epochs=12").replace("num_train_epochs=3, ", "")
    peaceful = run_alone(launcher, text, "peace")
    where = launcher.folder / "checkpoints"
    flags = ("--nproc-per-node", 1, "--checkpoint-dir", where, "--checkpoint-every", "1s")
    script, trail = launcher.folder / "train.py", Trail(launcher.folder / "kills", 1)
    env = environment(trail)
    first = launcher.start(*flags, script, run_dir="first", env=env)
    first.until("a checkpoint", lambda: trail.last_step() > 8 and list(where.glob("*step*")), 90)
    first.process.kill()
    first.process.wait()
    second = launcher.start(*flags, script, run_dir="second", env=env)
    assert second.wait(150) == 0, second.story()
    assert trail.steps(0) == peaceful.steps(0)
    assert trail.final(0) == peaceful.final(0)
    assert len(trail.lines(0)) < 1.7 * len(peaceful.lines(0)), "it began anew"
