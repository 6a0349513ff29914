"""How often a healthy log gets a cause: made-up logs of many forms, read as `everstep kb match` reads them.

    python bench/healthy_logs.py [--files 1500] [--kib 210] [--show 10] [--pairs 600]
    python bench/healthy_logs.py --folder DIR [--show 10]     logs of your own, a folder in DIR for each project

A log that has no cause and ends with what only follows from one is told by `everstep analyze` as an end of something.

Each file begins with what jobs print before they train: environments, listings of their own source, warnings, retries,
libraries that are missing and not needed. Then come steps in one of seven styles, with warnings in between; one file in
ten has no steps at all. Nothing fails in any of them: every cause is false, and every action worse.
"""

import argparse
import random
import sys
import time
from pathlib import Path

from everstep.evidence.known import is_consequence
from everstep.knowledge.causality.ranking import choose_verdict, rank_findings
from everstep.knowledge.engine import Engine
from everstep.knowledge.loading import Base, load_base
from everstep.knowledge.matcher import Matcher

REPORTS = Path(__file__).parent.parent / "tests" / "golden" / "knowledge" / "reports.tsv"
NOW = 1_795_000_000.0

SETUP = (
    'sysctl: setting key "net.core.somaxconn", ignoring: Read-only file system',
    "W1121 10:00:01.120 811 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable to be 1",
    "[W1121 10:00:02.331 socket.cpp:755] [c10d] The client socket has failed to connect to [n{n}]:29500 (errno: 111).",
    "[W1121 10:00:02.331 ProcessGroupNCCL.cpp:4843] [rank{r}]  using GPU {r} as device used by this process is unknown",
    "torchvision/io/image.py:13: UserWarning: Failed to load image Python extension: libjpeg.so.8: cannot open shared",
    "Could not load dynamic library 'libnvinfer.so.7'; dlerror: cannot open shared object file; ignore above",
    "WARNING: apex is not installed, falling back to torch.nn.LayerNorm",
    "async_io ............ [NO] ....... [NO]   [WARNING]  async_io requires the dev libaio .so object, not found",
    "n{n}:81{n}:90{n} [{r}] NCCL INFO NET/Plugin: No plugin found (libnccl-net.so), using internal implementation",
    "n{n}:81{n}:90{n} [{r}] NCCL INFO NET/OFI Setting FI_EFA_FORK_SAFE environment variable to 1",
    "n{n}:81{n}:90{n} [{r}] NCCL INFO Failed to open libibverbs.so[.1], using sockets",
    "| N/A   32C    P0    61W / 400W |      0MiB / 81920MiB |      0%      Default |   Volatile Uncorr. ECC  0 |",
    "GPU {r}: ECC errors: 0 uncorrectable, 0 correctable; retired pages: 0; Xid events: none",
    "nvidia-persistenced: started; NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54",
    "wandb: Network error (ConnectionError), entering retry loop.",
    "wandb: WARNING Symlinked 3 files into the W&B run directory, call wandb.save again to sync new files.",
    "urllib3 WARNING Retrying (Retry(total=4)) after connection broken by 'NewConnectionError': [Errno 110] timed out",
    "s3fs: SlowDown, retrying in {n}.{r} s (attempt {r}/10)",
    "no checkpoint found in /ckpt/run-{n}, starting from scratch",
    "checkpoint /ckpt/run-{n}/latest does not exist; training from random weights",
    "huggingface/tokenizers: The current process just got forked, after parallelism has been used. Disabling",
    "FutureWarning: `torch.load` with `weights_only=False` will fail in future",
    "config: nccl_timeout=1800 on_error=restart oom_retry=3 kill_on_nan=True retries=5 crash_dir=/tmp/crash",
    "srun: warning: can't run 1 processes on 2 nodes, setting nnodes to 1",
    "slurmstepd: task_p_pre_launch: Using sched_affinity for tasks",
    "enroot: /etc/hosts: Read-only file system, skipping",
    "docker: WARNING: The NVIDIA Driver was not detected. GPU functionality is not there",
    "bind: memory locked limit is 64 kB, ignoring",
    "mlx5_{r}: link is up, 400 Gb/s, state ACTIVE, 0 symbol errors, 0 link downed",
    "[rank{r}]: loading shard {n}/64: 0 corrupt records, 0 missing files, 0 timeouts",
    "Exception ignored in: <function Pool.__del__ at 0x7f>",
    "INFO:root:previous attempt ended with exit code 0, no error file",
    "pip: WARNING: Running pip as the 'root' user can result in broken permissions",
    "ERROR: pip's dependency resolver does not currently take into account all the packages that are installed.",
    "TRITON: autotune cache miss, compile failed for 1 of 40 configs, ignoring it",
    "import failed: No module named 'flash_attn_3', using scaled_dot_product_attention instead",
    "health check: ok (0 xid, 0 ecc, 0 nvlink errors, 0 ib errors)",
)
BETWEEN = (
    "Grad overflow on iteration {s}, reducing loss scale to 32768",
    "[deepspeed] OVERFLOW! Rank {r} Skipping step. Attempted loss scale: 65536, reducing to 32768",
    "dataloader: sample {s} is longer than the context, skipping it",
    "PIL: image file is truncated (3 bytes not processed), using the next sample",
    "checkpoint saved to /ckpt/step-{s} in 3.1 s; 0 errors",
    "evaluation at step {s}: error rate 0.{r}31, timeouts 0",
    "upload of step-{s} failed: 503 Slow Down, retrying in 2 s",
    "[W1121 11:00:02.331 CUDAGuardImpl.h:119] Warning: CUDA warning: driver shutting down (function destroyEvent)",
    "UserWarning: The AccumulateGrad node's stream does not match the stream of the node that produced the gradient",
    "gc: collected {s} objects; 0 uncollectable",
    "[rank{r}]: peak memory 71.2 GiB, 3 cudaMalloc retries",
)


def step_line(style: int, rng: random.Random, step: int) -> str:
    loss = 8.0 / (1 + step / 400) + rng.random() / 20
    clock = f"{10 + step // 3600 % 12:02}:{step // 60 % 60:02}:{step % 60:02}"
    rows = (
        f"consumed samples: {step * 256:12d} | lm loss: {loss:.6E} | grad norm: 0.412 | number of nan iterations:   0 |"
    )
    named = f'"namespace": "", "key": "train_loss", "value": {loss:.4f}, "metadata": {{"step": {step}}}'
    return (
        f"step:{step}/9000 train_loss:{loss:.4f} train_time:{step * 231}ms step_avg:231.02ms",
        f" [2026-11-21 {clock}] iteration {step:8d}/  500000 | {rows}",
        f"{{'loss': {loss:.4f}, 'grad_norm': 1.23, 'epoch': {step / 900:.3f}, 'step': {step}}}",
        f"[rank0]:[titan] 2026-11-21 {clock},123 - root - INFO - step: {step:6d}  loss: {loss:7.4f}  mfu: 38.26%",
        f"{step % 8}: :::MLLOG {{{named}}}",
        f"\rEpoch 1: {step % 100:3d}%|####      | {step}/9000 [00:{step % 60:02d}<10:00, 12.3it/s, loss={loss:.3f}]",
        f"Epoch [1][{step}/62598] lr: 1.0e-03, iter: {step}, time: 0.539, memory: 7239, loss: {loss:.4f}",
    )[style]


def healthy(number: int, size: int, sources: list[str], ended: float = 0.7) -> str:
    """`ended`: how likely it says at its end that the training is over."""
    rng = random.Random(number)
    style, parts, length, step = rng.randrange(7), [], 0, rng.randrange(3) * 1000
    filled = {"n": rng.randrange(1, 64), "r": rng.randrange(8)}
    if rng.random() < 0.4:
        source = rng.choice(sources)
        parts.append(source[: size // 3])
    parts += [rng.choice(SETUP).format(**filled) for _ in range(rng.randrange(4, 30))]
    has_steps = rng.random() >= 0.1
    length = sum(map(len, parts))
    while length < size:
        if not has_steps:
            line = rng.choice((f"tokenised document {step}", f"wrote shard {step} (0 errors)", *SETUP)).format(**filled)
        elif rng.random() < 0.01:
            line = rng.choice(BETWEEN).format(s=step, **filled)
        else:
            line = step_line(style, rng, step)
        parts.append(line)
        length += len(line) + 1
        step += 1
    return "\n".join([*parts, *(["training complete, exit code 0"] if rng.random() < ended else [])]) + "\n"


def verdict(base: Base, engine: Engine, text: str) -> str:
    matcher = Matcher(base, now=NOW, engine=engine)
    matcher.feed("log", text.encode())
    found = choose_verdict(rank_findings(matcher.finish())).finding
    return "" if found is None else f"{found.code} {found.blame}"


def changed_verdicts(base: Base, engine: Engine, sources: list[str], num_pairs: int, *, has_ended: bool) -> int:
    """How often a healthy log before a fault changes what is said of the fault."""
    lines = [line for line in REPORTS.read_text(encoding="utf-8").splitlines() if line.startswith(("read", "held"))]
    faults = [line.split("\t", 3)[3].replace("\\n", "\n") + "\n" for line in lines]
    alone = [verdict(base, engine, fault) for fault in faults]
    changed = 0
    for number in range(num_pairs):
        before = healthy(10_000 + number, 30 << 10, sources, ended=has_ended)
        chosen = number % len(faults)
        changed += verdict(base, engine, before + faults[chosen]) != alone[chosen]
    return changed


class Count:
    """What healthy files gave."""

    def __init__(self) -> None:
        self.files = self.bytes = self.causes = self.actions = self.ends = 0
        self.spent_s = 0.0

    def read(self, base: Base, engine: Engine, text: bytes) -> str:
        """The false cause in this one, in words; empty: none."""
        began = time.process_time()
        matcher = Matcher(base, now=NOW, engine=engine)
        matcher.feed("log", text)
        ordered = rank_findings(matcher.finish())
        found = choose_verdict(ordered).finding
        self.spent_s += time.process_time() - began
        self.ends += found is None and any(map(is_consequence, ordered))
        self.files, self.bytes = self.files + 1, self.bytes + len(text)
        if found is None:
            return ""
        self.causes += 1
        self.actions += found.acts
        return f"{found.code} {found.title}: {found.text[:140]}"

    def __str__(self) -> str:
        rate = self.causes * 1000 / max(1, self.files)
        return (
            f"{self.files} files, {self.bytes / 1e6:.0f} MB: {self.causes} false causes ({rate:.1f} in 1,000 files), "
            f"{self.actions} with an action, {self.ends} told as ends; "
            f"{self.bytes / max(self.spent_s, 1e-9) / 1e6:.0f} MB/s"
        )


def read_folder(base: Base, engine: Engine, folder: Path, show: int) -> None:
    """Each folder in it is a project, and each file in there the log of a run that ended well."""
    total, shown = Count(), 0
    for project in sorted(path for path in folder.iterdir() if path.is_dir()):
        count = Count()
        for path in sorted(path for path in project.rglob("*") if path.is_file()):
            text = path.read_bytes()
            if (cause := count.read(base, engine, text)) and shown < show:
                shown += 1
                print(f"{path}: {cause}", flush=True)
        for name, value in vars(count).items():
            setattr(total, name, getattr(total, name) + value)
        print(f"{project.name}: {count}", flush=True)
    print(f"all: {total}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1500)
    parser.add_argument("--kib", type=int, default=210)
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print the first N false causes")
    parser.add_argument("--pairs", type=int, default=600, help="healthy logs that are put before a fault")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="read these logs of runs that ended well instead")
    given = parser.parse_args()
    base = load_base()
    engine = Engine(base.signatures)
    if given.folder is not None:
        read_folder(base, engine, given.folder, given.show)
        return
    folders = (Path(__file__).parent, Path(sys.prefix) / "lib", Path(random.__file__).parent)
    sources = [path.read_text(errors="replace") for folder in folders for path in sorted(folder.glob("*.py"))[:60]]
    for has_ended, what in ((False, ""), (True, ", whose last word is that the training is over,")):
        changed = changed_verdicts(base, engine, sources, given.pairs, has_ended=has_ended)
        print(f"{given.pairs} healthy logs{what} before a fault: the verdict changes in {changed}", flush=True)
    count = Count()
    for number in range(given.files):
        cause = count.read(base, engine, healthy(number, given.kib << 10, sources).encode())
        if cause and count.causes <= given.show:
            print(f"file {number}: {cause}")
    print(count)


if __name__ == "__main__":
    main()
