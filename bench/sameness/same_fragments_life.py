"""The pieces that random programs are made of: children, threads, signals, streams, files, ends. Pure data.

See same_fragments.py for what a piece is. Imported for its side effect: each piece registers itself.
"""

# ruff: noqa: E501 - lines of programs

from sameness.same_fragments import Dice, Fragment, fragment


@fragment
def thread_at_import(_dice: Dice) -> Fragment:
    text = (
        "import queue, threading\nANSWERS = queue.Queue()\nQUESTIONS = queue.Queue()\n\n"
        "def serve():\n    while True:\n        ANSWERS.put(QUESTIONS.get() * 2)\n\n"
        "threading.Thread(target=serve, daemon=True).start()\n"
    )
    return Fragment(
        name="thread-at-import",
        imports="import own_server\nimport threading\n",
        body='own_server.QUESTIONS.put(21)\nsay("thread", own_server.ANSWERS.get(timeout=20), threading.active_count())\n',
        files={"own_server.py": text},
    )


@fragment
def child_at_import(_dice: Dice) -> Fragment:
    text = "import subprocess\nCHILD = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)\n"
    return Fragment(
        name="child-at-import",
        imports="import own_child\n",
        body='say("child", own_child.CHILD.communicate("to and fro")[0], own_child.CHILD.wait(20))\n',
        files={"own_child.py": text},
    )


@fragment
def non_daemon(dice: Dice) -> Fragment:
    return Fragment(
        name="non-daemon",
        imports="import threading\nimport time\n",
        late=f'threading.Thread(target=lambda: (time.sleep({dice.uniform(0.1, 0.5):.2f}), say("outlived main"))).start()\n',
    )


@fragment
def at_exit(dice: Dice) -> Fragment:
    fails = dice.random() < 0.3
    return Fragment(
        name="atexit",
        imports="import atexit\nimport weakref\n",
        defs="class Held:\n    pass\n\n\nheld = Held()\n\n\n",
        body='atexit.register(say, "exit: registered first")\natexit.register(say, "exit: registered last")\n'
        'weakref.finalize(held, say, "exit: finalized")\n' + ("atexit.register(lambda: 1 / 0)\n" if fails else ""),
    )


@fragment
def forked(dice: Dice) -> Fragment:
    code = dice.randint(0, 9)
    return Fragment(
        name="forked",
        imports="import os\nimport sys\n",
        body="sys.stdout.flush()\npid = os.fork()\nif pid == 0:\n"
        f'    say("in a forked child", os.environ["RANK"])\n    sys.stdout.flush()\n    os._exit({code})\n'
        'say("child ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n',
    )


@fragment
def pool(dice: Dice) -> Fragment:
    method = dice.choice(["fork", "spawn", "forkserver"])
    return Fragment(
        name=f"pool-{method}",
        imports="import multiprocessing\nimport dataclasses\n",
        defs="@dataclasses.dataclass\nclass Pair:\n    left: int\n    right: str\n\n\n"
        'def make(n: int) -> "Pair":\n    return Pair(n, "x" * n)\n\n\n',
        body=f'with multiprocessing.get_context("{method}").Pool(1) as workers:\n'
        '    say("pool", workers.apply_async(make, (3,)).get(timeout=60), workers.map(make, range(2)))\n',
        needs_guard=True,
        alone="children",
    )


@fragment
def process(dice: Dice) -> Fragment:
    method = dice.choice(["fork", "spawn", "forkserver"])
    return Fragment(
        name=f"process-{method}",
        imports="import multiprocessing\nimport sys\n",
        defs='def in_child(pipe) -> None:\n    print("the child prints", flush=True)\n'
        '    pipe.send((__name__, sys.argv[0].rsplit("/", 1)[-1], Note("hi")))\n    sys.exit(5)\n\n\n'
        "class Note:\n    def __init__(self, text): self.text = text\n"
        '    def __repr__(self): return f"Note({self.text}) of {type(self).__module__}"\n\n\n',
        body=f'context = multiprocessing.get_context("{method}")\nours, theirs = context.Pipe()\n'
        "one = context.Process(target=in_child, args=(theirs,))\none.start()\n"
        'say("process", ours.recv() if ours.poll(60) else "no answer")\none.join(60)\nsay("ended with", one.exitcode)\n',
        needs_guard=True,
        alone="children",
    )


@fragment
def executor(dice: Dice) -> Fragment:
    kind = dice.choice(["ThreadPoolExecutor", "ProcessPoolExecutor"])
    return Fragment(
        name=f"executor-{kind[:6].lower()}",
        imports="import concurrent.futures\n",
        defs="def square(n: int) -> int:\n    return n * n\n\n\n",
        body=f'with concurrent.futures.{kind}(2) as some:\n    say("squares", list(some.map(square, range(5))))\n',
        needs_guard=True,
        alone="children",
    )


@fragment
def shared_memory(_dice: Dice) -> Fragment:
    return Fragment(
        name="shared-memory",
        imports="from multiprocessing import shared_memory\n",
        body='block = shared_memory.SharedMemory(create=True, size=64)\nblock.buf[:3] = b"abc"\n'
        'say("shared", bytes(block.buf[:3]))\nblock.close()\nblock.unlink()\n',
    )


@fragment
def pickled(_dice: Dice) -> Fragment:
    return Fragment(
        name="pickled",
        imports="import pickle\n",
        defs="class Kept:\n    value = 4\n\n\n",
        body='text = pickle.dumps(Kept())\nsay("pickled", b"__main__" in text, type(pickle.loads(text)) is Kept)\n',
    )


@fragment
def signals(_dice: Dice) -> Fragment:
    return Fragment(
        name="signals",
        imports="import os\nimport signal\n",
        defs='def heard(signum, frame):\n    say("heard", signum, frame.f_code.co_name)\n\n\n',
        body="for name in ('SIGINT', 'SIGTERM', 'SIGHUP', 'SIGPIPE', 'SIGCHLD', 'SIGUSR2', 'SIGALRM', 'SIGCONT', 'SIGURG'):\n"
        "    now = signal.getsignal(getattr(signal, name))\n"
        '    say(name, getattr(now, "__name__", str(now)))\n'
        'say("blocked", sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))\n'
        "signal.signal(signal.SIGUSR1, heard)\nos.kill(os.getpid(), signal.SIGUSR1)\n"
        "signal.signal(signal.SIGALRM, heard)\nsignal.setitimer(signal.ITIMER_REAL, 0.05)\nsignal.pause()\n",
    )


@fragment
def warned(dice: Dice) -> Fragment:
    how = dice.choice(["error", "always", "ignore", "default"])
    return Fragment(
        name=f"warnings-{how}",
        early="import warnings\n_filters = [f[0] + ' ' + f[2].__name__ for f in warnings.filters]\n",
        body=f'say("filters", _filters)\nwarnings.simplefilter("{how}", FutureWarning)\ntry:\n'
        '    warnings.warn("soon", FutureWarning, stacklevel=1)\nexcept FutureWarning as error:\n    say("raised", error)\n'
        'warnings.warn("seen", UserWarning, stacklevel=2)\n',
    )


@fragment
def logged(dice: Dice) -> Fragment:
    how = dice.choice(
        [
            "logging.basicConfig(level=logging.INFO, format='%(levelname)s %(name)s %(message)s')",
            "logging.config.dictConfig({'version': 1, 'root': {'level': 'WARNING'}})",
            "logging.getLogger().setLevel(10)",
        ]
    )
    return Fragment(
        name="logging",
        early="import logging\nimport logging.config\n"
        "_loggers = [logging.getLogger().level, len(logging.getLogger().handlers), sorted(logging.root.manager.loggerDict)]\n",
        body=f'{how}\nlogging.getLogger("own").info("an information")\nlogging.getLogger("own").warning("a warning")\n'
        'say("loggers", _loggers, logging.getLogger().level, len(logging.getLogger().handlers), logging.lastResort is None)\n',
        alone="logging",
    )


@fragment
def written(dice: Dice) -> Fragment:
    lines = dice.randint(1, 4000)
    return Fragment(
        name="written",
        imports="import os\nimport sys\nimport tempfile\n",
        body=f'with open(f"out-{{os.environ[\'RANK\']}}.txt", "w") as file:\n    file.write("line\\n" * {lines})\n'
        'with open("given.txt") as file:\n    say("given", file.read())\n'
        'with tempfile.TemporaryDirectory() as folder:\n    say("temporary", os.path.dirname(folder))\n'
        "os.makedirs(f\"made/{os.environ['RANK']}\", exist_ok=True)\nsay(sys.path[1:2])\n",
        files={"given.txt": "what the user gave\n"},
    )


@fragment
def streams(dice: Dice) -> Fragment:
    return Fragment(
        name="streams",
        imports="import os\nimport sys\n",
        body=f'sys.stdout.write("x" * {dice.choice([10, 5000, 70000])} + "\\n")\nsys.stdout.flush()\n'
        'sys.stdout.buffer.write(b"\\xff\\xfe raw\\n")\nsys.stdout.flush()\nos.write(1, b"straight\\n")\n'
        'print("to stderr", file=sys.stderr)\nprint("\\u2713 \\u00fc", "tab\\t", "return\\rcarriage")\n'
        'print("\\x1b[31mred\\x1b[0m")\nprint()\nprint("  indented  ")\n',
    )


@fragment
def no_newline(_dice: Dice) -> Fragment:
    return Fragment(name="no-newline", late='import sys\nsys.stdout.write("the end has no newline")\n')


@fragment
def stdin(dice: Dice) -> Fragment:
    text = dice.choice(["typed line\nsecond\n", "no newline at the end", ""])
    return Fragment(
        name="stdin",
        imports="import os\nimport sys\n",
        body='if os.environ["LOCAL_RANK"] == "0":\n    say("stdin", sys.stdin.read())\n',
        stdin=text,
    )


@fragment
def ran(dice: Dice) -> Fragment:
    code = dice.choice([0, 3])
    return Fragment(
        name="subprocess",
        imports="import subprocess\nimport os\n",
        body=f'say("shell", subprocess.run("echo from a shell; exit {code}", shell=True).returncode)\n'
        'say("piped", subprocess.check_output("sort", input="b\\na\\n", text=True))\n'
        'say("system", os.system("true"), os.popen("echo popen").read())\n',
    )


@fragment
def asynchronous(_dice: Dice) -> Fragment:
    return Fragment(
        name="asyncio",
        imports="import asyncio\n",
        defs='async def serve() -> str:\n    await asyncio.sleep(0.05)\n    one = await asyncio.create_subprocess_exec("true")\n'
        '    return f"served {await one.wait()}"\n\n\n',
        body="say(asyncio.run(serve()))\n",
    )


@fragment
def context(_dice: Dice) -> Fragment:
    return Fragment(
        name="context",
        imports="import decimal\nimport locale\nimport sys\nimport time\n",
        body='say("locale", locale.getlocale(), time.tzname, sys.getfilesystemencoding(), decimal.getcontext().prec)\n',
    )


@fragment
def tensors(dice: Dice) -> Fragment:
    return Fragment(
        name="tensors",
        body='say("torch", torch.get_default_dtype(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled())\n'
        'say(torch.get_num_interop_threads(), torch.__config__.parallel_info().count("OpenMP"))\n'
        f"say(torch.arange({dice.randint(2, 9)}).float().softmax(0).tolist())\n",
        needs_torch=True,
    )


@fragment
def loader(dice: Dice) -> Fragment:
    workers = dice.choice([0, 1, 2])
    return Fragment(
        name=f"loader-{workers}",
        imports="import torch.utils.data\n",
        defs="class Every(torch.utils.data.Sampler):\n    def __iter__(self): return iter([4, 2, 0])\n"
        "    def __len__(self): return 3\n\n\nclass Items(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 6\n    def __getitem__(self, i): return i * 10, torch.initial_seed() % 2**60\n\n\n",
        body=f"got = list(torch.utils.data.DataLoader(Items(), sampler=Every(), batch_size=1, num_workers={workers}))\n"
        'say("batches", [int(one[0]) for one in got])\ndraw("workers", [int(one[1]) for one in got])\n'
        "mixed = torch.utils.data.DataLoader(list(range(300)), shuffle=True, batch_size=300)\n"
        'draw("shuffled", next(iter(mixed)).tolist())\n',
        needs_torch=True,
        needs_guard=True,
        alone="torch-seed",
    )


@fragment
def group(dice: Dice) -> Fragment:
    return Fragment(
        name="group",
        imports="import os\nimport torch.distributed as dist\n",
        body='dist.init_process_group("gloo")\nshared = torch.full((3,), float(os.environ["RANK"]))\n'
        "dist.all_reduce(shared)\nobjects = [None] * dist.get_world_size()\n"
        f'dist.all_gather_object(objects, ("rank", dist.get_rank(), {dice.randrange(99)}))\n'
        'say("reduced", shared.tolist(), objects)\ndist.barrier()\ndist.destroy_process_group()\n',
        needs_torch=True,
        alone="group",
    )


@fragment
def open_files(_dice: Dice) -> Fragment:
    return Fragment(
        name="open-files",
        early="import os\n_open = [int(fd) for fd in os.listdir('/proc/self/fd')]\n",
        # What is ours has numbers that no program counts on (docs/same-program.md, files.others).
        body='say("descriptors at the start", len([fd for fd in _open if 3 < fd < 100]))\n',
    )


@fragment
def patched(_dice: Dice) -> Fragment:
    return Fragment(
        name="patched",
        imports="import sys\nimport builtins\n",
        # Not sys.meta_path: our finder is a difference that is listed (docs/same-program.md).
        body='say("hooks",\n'
        "    len(sys.path_hooks), builtins.__import__.__module__, type(sys.stdout).__name__, print.__module__)\n",
    )


ENDINGS = {
    "exit-code": "sys.exit({code})",
    "exit-text": 'sys.exit("the reason")',
    "raise": 'raise ValueError("what went wrong")',
    "raise-chain": 'try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise RuntimeError("because") from error',
    "abrupt": 'sys.stdout.write("never flushed")\nos._exit({code})',
    "signal": "os.kill(os.getpid(), {signal})\ntime.sleep(60)",
    "assert": "assert not sys.argv, 'an assertion'",
    "interrupt": "raise KeyboardInterrupt",
}


@fragment
def ending(dice: Dice) -> Fragment:
    """The rank with the highest number fails when all others have said everything; they wait for their end."""
    name = dice.choice(sorted(ENDINGS))
    code = dice.choice([1, 2, 3, 77, 255])
    how = ENDINGS[name].format(code=code, signal=dice.choice([6, 9, 11, 15]))
    waits = (
        "sys.stdout.flush()\nattempt = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "open(f\"said-{attempt}-{os.environ['RANK']}\", 'w').close()\n"
        'last = int(os.environ["WORLD_SIZE"]) - 1\nif int(os.environ["RANK"]) != last:\n    time.sleep(120)\n'
        "while not all(os.path.exists(f'said-{attempt}-{rank}') for rank in range(last)):\n    time.sleep(0.02)\n"
    )
    return Fragment(
        name=f"ends-{name}", imports="import os\nimport sys\nimport time\n", body=waits + how + "\n", ends=True
    )


@fragment
def clean_exit(dice: Dice) -> Fragment:
    how = dice.choice(["sys.exit(0)", "sys.exit(None)", "raise SystemExit", "sys.stdout.flush(); os._exit(0)"])
    return Fragment(name="ends-clean", imports="import os\nimport sys\n", body=f"{how}\n", ends=True)
