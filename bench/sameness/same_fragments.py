"""The pieces that random programs are made of: environment, imports, draws of random numbers. Pure data.

A piece says what it sees with `say(...)`, which has to be the same under every launcher, and draws with
`draw(name, value)`, which has to be as distinct between ranks as it is under torchrun. Used by same_generator.py.
"""

# ruff: noqa: E501 - lines of programs

import random
from collections.abc import Callable
from dataclasses import dataclass, field

Dice = random.Random


@dataclass(frozen=True, kw_only=True)
class Fragment:
    """Text for each place of a program. `body` runs within `main()`, `late` is the last thing of the script."""

    name: str
    early: str = ""  # before all imports
    imports: str = ""
    defs: str = ""
    body: str = ""
    late: str = ""
    files: dict[str, str] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    stdin: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    needs_torch: bool = False
    needs_guard: bool = False  # children import the script
    ends: bool = False  # the process ends with it: last in `main()`
    alone: str = ""  # at most one piece of each such name in a program


FRAGMENTS: list[Callable[[Dice], Fragment]] = []


def fragment(make: Callable[[Dice], Fragment]) -> Callable[[Dice], Fragment]:
    FRAGMENTS.append(make)
    return make


@fragment
def env_early_threads(dice: Dice) -> Fragment:
    return Fragment(
        name="env-early-threads",
        early=f'import os\nos.environ["OMP_NUM_THREADS"] = "{dice.randint(2, 7)}"\n',
        body='say("threads", torch.get_num_threads(), os.environ["OMP_NUM_THREADS"])\n',
        needs_torch=True,
    )


@fragment
def env_early_switch(dice: Dice) -> Fragment:
    key, imports, said = dice.choice(
        [
            ("PYTORCH_JIT=0", "", "type(torch.jit.script(scripted)).__name__"),
            ("TORCH_DISTRIBUTED_DEBUG=DETAIL", "import torch.distributed as dist\n", "str(dist.get_debug_level())"),
            ("TORCH_HOME=/tmp/own-hub", "import torch.hub\n", "torch.hub.get_dir()"),
            ("TORCH_LOGS=+distributed", "", 'logging.getLogger("torch.distributed").level'),
        ]
    )
    name, value = key.split("=")
    return Fragment(
        name=f"env-early-{name.lower()}",
        early=f'import os\nos.environ.setdefault("{name}", "{value}")\n',
        imports=f"import logging\n{imports}",
        defs="def scripted(x: int) -> int:\n    return x + 1\n\n\n",
        body=f'say("{name}", {said})\n',
        needs_torch=True,
    )


@fragment
def env_early_library(dice: Dice) -> Fragment:
    """Libraries that read their variables once, while they are imported."""
    key, said = dice.choice(
        [
            ("HF_HOME=./own-hf", "huggingface_hub.constants.HF_HOME"),
            ("HF_HUB_OFFLINE=1", "huggingface_hub.constants.HF_HUB_OFFLINE"),
        ]
    )
    name, value = key.split("=")
    return Fragment(
        name=f"env-early-{name.lower()}",
        early=f'import os\nos.environ["{name}"] = "{value}"\n',
        imports="import huggingface_hub.constants\n",
        body=f'say("{name}", {said})\n',
        alone="hf",
    )


@fragment
def env_late(dice: Dice) -> Fragment:
    value = dice.randint(1, 9)
    code = 'import os; print(os.environ.get("LATE"), os.environ.get("OMP_NUM_THREADS"), os.environ["RANK"])'
    return Fragment(
        name="env-late",
        imports="import os\nimport subprocess\nimport sys\n",
        body=f'os.environ["LATE"] = "{value}"\n'
        f"done = subprocess.run([sys.executable, '-c', {code!r}], capture_output=True, text=True)\n"
        'say("late", done.stdout.strip(), done.stderr.strip(), os.getenv("LATE"), os.environb[b"LATE"])\n',
    )


@fragment
def env_given(dice: Dice) -> Fragment:
    text = dice.choice(["a b", "x=y", "ü", ""])
    keys = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"]
    keys += ["ROLE_NAME", "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"]
    keys += ["OMP_NUM_THREADS", "GIVEN_BY_USER", "PYTHONPATH", "HOME", "LANG"]
    return Fragment(
        name="env-given",
        imports="import os\n",
        body=f'for key in {keys}:\n    say("given", key, os.environ.get(key))\n',
        env={"GIVEN_BY_USER": text},
    )


@fragment
def draws_unseeded(dice: Dice) -> Fragment:
    all_of = {
        "random": "random.random()",
        "sample": "random.sample(range(10**6), 3)",
        "uuid": "uuid.uuid4().hex",
        "uuid1": "uuid.uuid1().hex",
        "secrets": "secrets.token_hex(8)",
        "urandom": "os.urandom(8).hex()",
        "tempname": "tempfile.mktemp()",
        "system": "random.SystemRandom().random()",
    }
    names = dice.sample(sorted(all_of), 4)
    return Fragment(
        name="draws-unseeded",
        imports="import os\nimport random\nimport secrets\nimport tempfile\nimport uuid\n",
        body="".join(f'draw("{name}", {all_of[name]})\n' for name in names),
    )


@fragment
def draws_hash(dice: Dice) -> Fragment:
    return Fragment(
        name="draws-hash",
        body=f'draw("hash", hash("{dice.random()}"))\n'
        'draw("set", list({f"key{i}" for i in range(40)}))\nsay(hash(7), hash(1.5))\n',
    )


@fragment
def draws_hash_seeded(dice: Dice) -> Fragment:
    return Fragment(
        name="draws-hash-seeded",
        body='say("hash", hash("a"), [*{"a", "b", "c", "d"}])\n',
        env={"PYTHONHASHSEED": str(dice.randint(0, 9))},
        alone="hash",
    )


@fragment
def draws_numpy(dice: Dice) -> Fragment:
    is_seeded = dice.random() < 0.5
    seed = f"numpy.random.seed({dice.randrange(99)})\n" if is_seeded else ""
    call = "say" if is_seeded else "draw"
    return Fragment(
        name=f"draws-numpy-{'seeded' if is_seeded else 'unseeded'}",
        imports="import numpy\n",
        body=f'{seed}{call}("numpy", numpy.random.rand(3).tolist())\n'
        f'draw("numpy rng", numpy.random.default_rng().random())\n{call}("again", numpy.random.permutation(50).tolist())\n',
        alone="numpy",
    )


@fragment
def draws_torch(dice: Dice) -> Fragment:
    all_of = {
        "initial": "torch.initial_seed()",
        "perm": "torch.randperm(1000).tolist()",
        "dropout": "torch.nn.functional.dropout(torch.ones(200)).tolist()",
        "linear": "torch.nn.Linear(3, 3).weight.tolist()",
        "sampler": "list(torch.utils.data.RandomSampler(range(200)))",
        "state": "torch.get_rng_state().sum().item()",
    }
    body = "".join(f'draw("torch {name}", {all_of[name]})\n' for name in dice.sample(sorted(all_of), 3))
    return Fragment(
        name="draws-torch",
        imports="import torch.utils.data\n",
        body=body,
        needs_torch=True,
        alone="torch-seed",
    )


@fragment
def draws_torch_seeded(dice: Dice) -> Fragment:
    seed = dice.choice([f"torch.manual_seed({dice.randrange(99)})", 'torch.manual_seed(int(os.environ["RANK"]))'])
    return Fragment(
        name="draws-torch-seeded",
        imports="import os\n",
        body=f'{seed}\nsay("seeded", torch.initial_seed(), torch.randn(4).tolist(), torch.randperm(9).tolist())\n'
        'say("model", float(torch.nn.Linear(8, 8)(torch.ones(8)).sum()))\n',
        needs_torch=True,
        alone="torch-seed",
    )


@fragment
def draws_random_seeded(dice: Dice) -> Fragment:
    return Fragment(
        name="draws-random-seeded",
        imports="import random\n",
        body=f'random.seed({dice.randrange(99)})\nsay("random", random.random(), random.sample(range(99), 5))\n',
        alone="random-seed",
    )


@fragment
def module_state(dice: Dice) -> Fragment:
    """A module beside the script that makes its generator, its token and its identity while it is imported."""
    text = (
        "import os, random, uuid\n"
        "GENERATOR = random.Random()\nTOKEN = uuid.uuid4().hex\nPID = os.getpid()\nRANK = os.environ.get('RANK')\n"
        f"print('imported in rank', RANK{', flush=True' if dice.random() < 0.5 else ''})\n"
    )
    return Fragment(
        name="module-state",
        imports="import own_state\nimport os\n",
        body='draw("module rng", own_state.GENERATOR.random())\ndraw("token", own_state.TOKEN)\n'
        'say("module", own_state.PID == os.getpid(), own_state.RANK)\n',
        files={"own_state.py": text},
    )


@fragment
def shadowed(dice: Dice) -> Fragment:
    names = dice.sample(["profile", "statistics", "calendar", "colorsys", "cmd", "wave"], 2)
    said = ", ".join(f'getattr({name}, "MINE", "the library\'s")' for name in names)
    return Fragment(
        name=f"shadow-{'-'.join(names)}",
        imports="".join(f"import {name}\n" for name in names),
        body=f'say("shadowed", {said})\n',
        files={f"{name}.py": 'MINE = "mine"\n' for name in names},
        alone="shadow",
    )


@fragment
def package(_dice: Dice) -> Fragment:
    return Fragment(
        name="package",
        imports="import own_package.part\nimport sys\n",
        body='say(own_package.part.WHERE, own_package.ORDER, [m for m in sys.modules if m.startswith("own_")])\n',
        files={
            "own_package/__init__.py": "ORDER = ['package']\nprint('package imported')\n",
            "own_package/part.py": "from own_package import ORDER\nORDER.append('part')\nWHERE = __name__\n",
        },
    )


@fragment
def modules_before(dice: Dice) -> Fragment:
    names = dice.sample(["numpy", "torch", "json", "logging", "random", "asyncio", "multiprocessing"], 4)
    return Fragment(
        name="modules-before",
        early=f"import sys\n_loaded = [name for name in {sorted(names)} if name in sys.modules]\n",
        body='say("loaded before anything was imported", _loaded)\n',
    )


@fragment
def interpreter(_dice: Dice) -> Fragment:
    return Fragment(
        name="interpreter",
        early="import sys, gc, warnings, threading, signal\n"
        "_seen = [sys.gettrace(), sys.getprofile(), sys.excepthook is sys.__excepthook__, sys.flags.hash_randomization,\n"
        "    sys.getswitchinterval(), sys.getrecursionlimit(), gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(),\n"
        "    len(gc.callbacks), len(warnings.filters), threading.active_count(), sys.dont_write_bytecode,\n"
        "    sys.stdout.line_buffering, sys.stdout.write_through, sys.stdin.isatty(), sys.stdout.isatty(),\n"
        "    sys.stdout.encoding, sys.stderr.errors, sys.flags.isolated, sys.flags.utf8_mode, sys.displayhook.__name__]\n",
        body='say("interpreter", _seen)\n',
    )


@fragment
def stack(_dice: Dice) -> Fragment:
    return Fragment(
        name="stack",
        imports="import inspect\nimport os\nimport sys\nimport traceback\n",
        defs="def depth(n: int = 0) -> int:\n    try:\n        return depth(n + 1)\n    except RecursionError:\n"
        "        return n\n\n\n",
        body='say("outermost", os.path.basename(inspect.stack()[-1].filename), len(inspect.stack()), depth())\n'
        'say("trace", [(os.path.basename(f.filename), f.name) for f in traceback.extract_stack()])\n',
    )


@fragment
def identity(_dice: Dice) -> Fragment:
    return Fragment(
        name="identity",
        imports="import os\nimport sys\nimport resource\nimport pathlib\n",
        body='say("main", __name__, __file__, __spec__, sys.modules["__main__"].__dict__ is globals(), __package__)\n'
        'say("argv", sys.argv, sys.path[0], os.getcwd(), sys.orig_argv[-len(sys.argv):])\n'
        'say("process", os.umask(0o022), resource.getrlimit(resource.RLIMIT_NOFILE), os.nice(0))\n'
        'say("affinity", len(os.sched_getaffinity(0)), os.getsid(0) == os.getsid(os.getppid()))\n'
        'say("cmdline", [os.path.basename(a) for a in pathlib.Path("/proc/self/cmdline").read_text().split(chr(0))])\n',
        argv=("--name", "a value with spaces", "-v"),
    )


@fragment
def builtin_names(_dice: Dice) -> Fragment:
    return Fragment(
        name="builtin-names",
        early='_names = sorted(name for name in globals() if name != "_names")\n',
        body='say("globals at the top", _names)\nsay("builtins", type(__builtins__).__name__, type(__loader__).__name__)\n',
    )
