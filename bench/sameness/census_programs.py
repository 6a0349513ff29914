"""The programs of the census: bare ones, and one for each of the training libraries that are used most.

Each is one script: its own imports, the rendezvous, a small use of its library, ten steps, an end. Nothing is
downloaded: models are tiny and random, data is made on the spot. Called by census.py.
"""

import importlib.util
from dataclasses import dataclass
from textwrap import dedent, indent


@dataclass(frozen=True, slots=True)
class Program:
    """`needs`: what must be importable. `use` runs after the rendezvous, in `rank` of `world`."""

    name: str
    needs: tuple[str, ...] = ()
    imports: str = ""
    use: str = ""
    asks_early: bool = False  # who it is, and all other variables, in its first lines

    @property
    def missing(self) -> list[str]:
        return [name for name in self.needs if importlib.util.find_spec(name) is None]

    def text(self) -> str:
        imports, use = (indent(dedent(part).strip(), "    ") for part in (self.imports, self.use))
        asked, without = ("VARIABLES", '""') if self.asks_early else ("()", '"env"')
        script = _SCRIPT.replace("ASKED", asked).replace("WITHOUT", without)
        return script.replace("    IMPORTS", imports or "    pass").replace("    USE", use or "    pass")


_SCRIPT = '''"""Asked by the census."""
import sys

MODULES_AT_START = list(sys.modules)


class Made:
    """A class of the script: do its objects come back from a child as what they are?"""

    def __init__(self, value):
        self.value = value


def send(to, value):
    to.send(Made(value))


class Late:
    def __del__(self):
        self.happened("end: __del__ of a global")


def ending():
    import atexit, multiprocessing.util, threading, time

    def thread():
        time.sleep(0.3)
        census.happened("end: thread")

    atexit.register(census.happened, "end: atexit 1")
    multiprocessing.util.Finalize(None, census.happened, ("end: finalize",), exitpriority=5)
    atexit.register(census.happened, "end: atexit 2")
    threading._register_atexit(census.happened, "end: threading")
    threading.Thread(target=thread).start()


if __name__ == "__main__":
    import os
    import census_probe as census

    census.happened("began")
    VARIABLES = ("RANK", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT", "WORLD_SIZE")
    AT_START = {name: os.environ.get(name) for name in ASKED}
    census.take("start", globals(), MODULES_AT_START, without=WITHOUT)
    import torch
    IMPORTS
    census.take("imported", globals())
    census.happened("imported")

    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    for name, value in AT_START.items():
        census.note(f"kept/env.{name} is what it was at the start", value == os.environ.get(name))
    census.take("rendezvous", globals())
    census.happened("rendezvous")
    USE
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(10):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    census.take("end", globals())
    import multiprocessing

    for method in ("fork", "spawn"):
        here, there = multiprocessing.get_context(method).Pipe()
        try:
            child = multiprocessing.get_context(method).Process(target=send, args=(there, rank))
            child.start()
            made = here.recv() if here.poll(20) else None
            came = type(made) is Made, type(made).__module__, made.value == rank
            child.join()
        except Exception as error:
            came = repr(error)
        census.note(f"child/{method}.its own class", came)
    drawn = [each.item() for each in torch.utils.data.DataLoader(range(4), sampler=None, num_workers=1)]
    census.note("child/loader.items", drawn)
    census.write()
    dist.barrier()  # the others have written theirs
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == 1:
        os.kill(os.getpid(), 9)
    dist.barrier()
    dist.destroy_process_group()
    ending()
    LATE = Late()
    LATE.happened = census.happened
    print("rank", rank, "is done")
'''

_TINY_GPT2 = "GPT2Config(vocab_size=60, n_positions=8, n_embd=16, n_layer=1, n_head=2)"

PROGRAMS = (
    Program("bare"),
    Program("early", asks_early=True),
    Program(
        "transformers",
        ("transformers", "accelerate"),
        "from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments",
        f"""
        texts = [dict(input_ids=torch.arange(6) + n, labels=torch.arange(6)) for n in range(16)]
        args = TrainingArguments("out", max_steps=3, report_to=[], use_cpu=True, save_strategy="no", logging_steps=1)
        Trainer(GPT2LMHeadModel({_TINY_GPT2}), args, train_dataset=texts).train()
        """,
    ),
    Program(
        "datasets",
        ("datasets",),
        "import datasets",
        """
        numbers = datasets.Dataset.from_dict({"n": list(range(64))}).map(lambda row: {"n": row["n"] + 1})
        assert sum(numbers.shuffle(seed=1)["n"]) == 2080
        """,
    ),
    Program(
        "accelerate",
        ("accelerate",),
        "from accelerate import Accelerator",
        """
        accelerator = Accelerator(cpu=True)
        small = torch.nn.Linear(4, 1)
        small, steps = accelerator.prepare(small, torch.optim.SGD(small.parameters(), 0.1))
        accelerator.backward(small(torch.ones(2, 4)).sum())
        steps.step()
        """,
    ),
    Program(
        "lightning",
        ("lightning",),
        "import lightning.pytorch as pl",
        """
        class Small(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)
            def training_step(self, batch, index):
                return self.layer(batch).sum()
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 0.1)
        loader = torch.utils.data.DataLoader(torch.ones(16, 4), batch_size=4)
        quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
        pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_steps=3, **quiet).fit(Small(), loader)
        """,
    ),
    Program(
        "torchvision",
        ("torchvision",),
        "import torchvision",
        """
        images = torchvision.datasets.FakeData(8, (3, 32, 32), 10, torchvision.transforms.ToTensor())
        torchvision.models.resnet18(num_classes=10).eval()(torch.stack([images[n][0] for n in range(4)]))
        """,
    ),
    Program(
        "torchmetrics",
        ("torchmetrics",),
        "import torchmetrics",
        """
        accuracy = torchmetrics.classification.MulticlassAccuracy(4)
        accuracy.update(torch.eye(4), torch.arange(4))
        assert accuracy.compute() == 1
        """,
    ),
    Program(
        "timm",
        ("timm",),
        "import timm",
        'timm.create_model("resnet10t", num_classes=4).eval()(torch.ones(1, 3, 64, 64))',
    ),
    Program(
        "peft",
        ("peft", "transformers"),
        "import peft\nfrom transformers import GPT2Config, GPT2LMHeadModel",
        f'peft.get_peft_model(GPT2LMHeadModel({_TINY_GPT2}), peft.LoraConfig(target_modules=["c_attn"]))',
    ),
    Program(
        "trl",
        ("trl", "datasets"),
        "from trl import SFTConfig, SFTTrainer",
        'SFTConfig("out", max_steps=3, report_to=[], use_cpu=True, bf16=False)',
    ),
    Program(
        "diffusers",
        ("diffusers",),
        "from diffusers import DDPMScheduler",
        "DDPMScheduler().add_noise(torch.ones(1, 4), torch.randn(1, 4), torch.tensor([5]))",
    ),
    Program(
        "wandb",
        ("wandb",),
        "import wandb",
        """
        tracked = wandb.init(mode="offline", project="census", dir=".", settings=wandb.Settings(console="off"))
        tracked.log({"loss": 1.0})
        tracked.finish()
        """,
    ),
    Program(
        "tensorboard",
        ("tensorboard",),
        "from torch.utils.tensorboard import SummaryWriter",
        """
        with SummaryWriter(f"tb-{rank}") as writer:
            writer.add_scalar("loss", 1.0, 0)
        """,
    ),
    Program(
        "hydra",
        ("hydra", "omegaconf"),
        "import hydra\nfrom omegaconf import OmegaConf",
        """
        with hydra.initialize(version_base=None, config_path=None):
            assert OmegaConf.to_container(hydra.compose(overrides=["+lr=1"])) == {"lr": 1}
        """,
    ),
)
