"""Which public examples are run, with which arguments, and what they find beside them. Called by public_examples.py.

None of their text is here: the one who runs the benchmark has fetched it. `project` is the folder of the fetched
source; what an example imports from beside it is copied with it, byte for byte.
"""

import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """`folder` is copied and is where it runs; `script` lies in it. `midway`: what a rank has printed, or a file has in
    its path, when it is killed. `draws`: it sets no seed, so that its numbers and tensors are compared by kind only.
    `ranks`: one for what takes no notice of the other on CPU, and writes into the same files.
    """

    project: str
    folder: str
    script: str
    arguments: str = ""
    needs: tuple[str, ...] = ()
    data: tuple[str, ...] = ()  # made by example_data.py
    env: tuple[tuple[str, str], ...] = ()
    midway: str | None = None  # None: nobody is killed
    draws: bool = False
    ranks: int = 2

    @property
    def name(self) -> str:
        return f"{self.project}/{self.folder}/{self.script}"

    @property
    def missing(self) -> list[str]:
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


_HUGGING_FACE = ("accelerate", "transformers", "datasets", "evaluate", "sklearn")
_FABRIC = (("LT_CLI_USED", "1"), ("LT_ACCELERATOR", "cpu"), ("LT_DEVICES", "2"), ("LT_STRATEGY", "ddp"))


def _accelerate(folder: str, script: str, arguments: str = "", midway: str = "epoch 1:", **more: object) -> Example:
    return Example(
        project="accelerate",
        folder=f"examples{folder}",
        script=script,
        arguments=f"--cpu {arguments}",
        needs=_HUGGING_FACE,
        data=("glue", "bert", "metrics"),
        midway=midway,
        **more,  # type: ignore[arg-type]
    )


def _transformers(folder: str, script: str, arguments: str, midway: str) -> Example:
    return Example(
        project="transformers",
        folder=f"examples/pytorch/{folder}",
        script=script,
        arguments=arguments,
        needs=_HUGGING_FACE,
        data=("glue", "bert", "gpt2", "metrics", "text"),
        env=(("ACCELERATE_USE_CPU", "1"),),
        midway=midway,
    )


_TRAINER = "--output_dir out --do_train --do_eval --use_cpu --report_to none --logging_steps 5 --save_steps 10"
_CLM = "--model_name_or_path tiny-gpt2 --train_file text.txt --validation_file text.txt --block_size 32"
_GLUE = "--model_name_or_path bert-base-cased --train_file train.csv --validation_file validation.csv"

EXAMPLES = (
    _accelerate("", "nlp_example.py", midway="epoch 0:"),
    _accelerate("", "complete_nlp_example.py", "--checkpointing_steps epoch --with_tracking", midway="epoch_0/"),
    _accelerate("/by_feature", "checkpointing.py", "--checkpointing_steps epoch --output_dir out", midway="epoch_0/"),
    _accelerate("/by_feature", "local_sgd.py"),
    _accelerate("/by_feature", "ddp_comm_hook.py"),
    _accelerate("/by_feature", "multi_process_metrics.py"),
    _accelerate("/by_feature", "early_stopping.py", midway="epoch 0:"),
    _accelerate("/by_feature", "gradient_accumulation.py", "--gradient_accumulation_steps 2"),
    _accelerate("/by_feature", "automatic_gradient_accumulation.py"),
    _accelerate("/by_feature", "cross_validation.py", "--num_folds 2"),
    _accelerate("/by_feature", "memory.py"),
    _accelerate("/by_feature", "tracking.py", "--with_tracking"),
    _transformers("language-modeling", "run_clm.py", f"{_CLM} {_TRAINER} --max_steps 20", "checkpoint-10/"),
    _transformers(
        "language-modeling",
        "run_clm_no_trainer.py",
        f"{_CLM} --seed 1 --num_train_epochs 2 --checkpointing_steps epoch --output_dir out",
        "epoch_0/",
    ),
    _transformers(
        "language-modeling",
        "run_mlm.py",
        "--model_name_or_path bert-base-cased --train_file text.txt --validation_file text.txt --max_seq_length 32 "
        f"{_TRAINER} --max_steps 20",
        "checkpoint-10/",
    ),
    _transformers("text-classification", "run_glue.py", f"{_GLUE} {_TRAINER} --max_steps 20", "checkpoint-10/"),
    _transformers(
        "text-classification",
        "run_glue_no_trainer.py",
        f"{_GLUE} --seed 1 --num_train_epochs 2 --checkpointing_steps epoch --output_dir out",
        "epoch_0/",
    ),
    Example(
        project="pytorch-lightning",
        folder="examples/fabric/language_model",
        script="train.py",
        needs=("lightning",),
        data=("wikitext",),
        env=_FABRIC,
        midway="epoch: 3 ",
    ),
    Example(
        project="pytorch-lightning",
        folder="examples/fabric/reinforcement_learning",
        script="train_torch.py",
        arguments="--total-timesteps 4096",
        needs=("lightning", "gymnasium", "tensorboard", "torchmetrics"),
        midway="tfevents",
    ),
    Example(
        project="pytorch-lightning",
        folder="examples/fabric/reinforcement_learning",
        script="train_fabric.py",
        arguments="--total-timesteps 4096",
        needs=("lightning", "gymnasium", "tensorboard", "torchmetrics"),
        env=_FABRIC,
        midway="tfevents",
    ),
    Example(
        project="pytorch-lightning",
        folder="examples/pytorch/basics",
        script="transformer.py",
        needs=("lightning", "tensorboard"),
        data=("wikitext",),
        midway="events.out",
        ranks=1,
    ),
    Example(
        project="pytorch-lightning",
        folder="examples/pytorch/bug_report",
        script="bug_report_model.py",
        needs=("lightning", "tensorboard"),
        draws=True,
        ranks=1,
    ),
    Example(project="pytorch-examples", folder="regression", script="main.py", draws=True),
    Example(
        project="pytorch-examples",
        folder="word_language_model",
        script="main.py",
        arguments="--epochs 3 --emsize 32 --nhid 32 --batch_size 4 --log-interval 10 --data wikitext --save model.pt",
        data=("word-folder",),
        midway="end of epoch   1",
    ),
    Example(
        project="pytorch-examples",
        folder="reinforcement_learning",
        script="reinforce.py",
        arguments="--log-interval 5",
        needs=("gymnasium", "pandas"),
        midway="Episode 20",
    ),
    Example(project="pytorch-examples", folder="distributed/tensor_parallelism", script="tensor_parallel_example.py"),
    Example(project="pytorch-examples", folder="distributed/FSDP2", script="example.py"),
    Example(
        project="minGPT",
        folder=".",
        script="projects/adder/adder.py",
        arguments="--trainer.max_iters=60 --trainer.num_workers=0",
        env=(("PYTHONPATH", "."),),
        midway="iter 30:",
    ),
    Example(
        project="minGPT",
        folder=".",
        script="projects/chargpt/chargpt.py",
        arguments="--trainer.max_iters=40 --trainer.num_workers=2 --model.model_type=gpt-nano --data.block_size=32",
        data=("input",),
        env=(("PYTHONPATH", "."),),
        midway="iter 20:",
    ),
    Example(project="nanoGPT", folder=".", script="data/shakespeare_char/prepare.py", data=("shakespeare",)),
    # Its DDP is CUDA's alone: here it fails, and has to fail alike.
    Example(
        project="nanoGPT",
        folder=".",
        script="train.py",
        arguments="--dataset=shakespeare_char --device=cpu --backend=gloo --compile=False --max_iters=5",
    ),
)
