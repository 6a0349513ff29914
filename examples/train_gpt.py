"""Train a small GPT on Python's own source code, and lose nothing when a rank dies.

    python train_gpt.py                                  one process
    torchrun --nproc-per-node 2 train_gpt.py             two processes, as always
    everstep run --nproc-per-node 2 train_gpt.py         the same; kill a rank and watch

Everything that everstep needs is in three lines, marked (1), (2) and (3).
"""

import argparse
import hashlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import everstep  # (1)

CONTEXT = 128  # bytes that the model sees
VOCABULARY = 256  # a token is a byte


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each with a residual connection."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm_feed = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.num_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(attended.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.feed(self.norm_feed(x)))


class GPT(nn.Module):
    def __init__(self, width: int, num_layers: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        nn.init.normal_(self.token.weight, std=0.02)  # it is the output layer as well
        self.position = nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        self.blocks = nn.Sequential(*(Block(width, num_heads, dropout) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.token(tokens) + self.position)
        return F.linear(self.norm(x), self.token.weight)


class Sampler:
    """Random pieces of the text. Which ones depends on seed, rank and position only, so its state is one number."""

    def __init__(self, text: torch.Tensor, batch_size: int, seed: int, rank: int) -> None:
        self.text, self.batch_size, self.seed, self.rank = text, batch_size, seed, rank
        self.position = 0

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        dice = torch.Generator().manual_seed(hash((self.seed, self.rank, self.position)) & 0x7FFFFFFF)
        self.position += 1
        starts = torch.randint(len(self.text) - CONTEXT, (self.batch_size, 1), generator=dice)
        pieces = self.text[starts + torch.arange(CONTEXT + 1)].long()
        return pieces[:, :-1], pieces[:, 1:]

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def standard_library(num_bytes: int = 1 << 20) -> torch.Tensor:
    """The first mebibyte of the standard library's modules, in order of name."""
    text = bytearray()
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= num_bytes:
            break
    return torch.frombuffer(text[:num_bytes], dtype=torch.uint8)


class LossLog:
    """One line `step loss` per step, exact. Steps that are done again replace what was written before."""

    def __init__(self, path: str, first_step: int) -> None:
        known = Path(path).read_text().splitlines(keepends=True) if Path(path).exists() else []
        kept = [line for line in known if line.endswith("\n") and int(line.split()[0]) < first_step]
        self.file = Path(path).open("a", buffering=1)  # noqa: SIM115 - open as long as the process lives
        self.file.truncate(sum(map(len, kept)))  # never written anew: a kill at this line would lose it

    def write(self, step: int, loss: float) -> None:
        self.file.write(f"{step} {loss.hex()}\n")


def digest(model: nn.Module) -> str:
    """All parameters in one number: equal exactly if every bit is."""
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=8, help="pieces of text per rank and step")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--loss-log", metavar="FILE", help="rank 0 writes every loss here, exactly")
    parser.add_argument("--final", metavar="FILE", help="rank 0 writes a digest of the trained parameters here")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0
    num_ranks = dist.get_world_size() if distributed else 1

    torch.manual_seed(args.seed)
    model: nn.Module = GPT(args.width, args.layers, num_heads=4, dropout=args.dropout)
    if distributed:
        model = DistributedDataParallel(model)
    torch.manual_seed(args.seed + 1 + rank)  # every rank drops out other neurons

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(args.steps, 1))
    sampler = Sampler(standard_library(), args.batch_size, args.seed, rank)

    state = everstep.State(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler)  # (2)
    if state.resumed and rank == 0:
        print(f"resumed after step {state.step}", flush=True)
    log = LossLog(args.loss_log, state.step + 1) if args.loss_log and rank == 0 else None

    began = time.perf_counter()
    for step in state.steps(args.steps):  # (3)
        tokens, targets = sampler.next_batch()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

        if log:
            log.write(step, loss.item())
        if rank == 0:
            now = time.perf_counter()
            tokens_per_s = tokens.numel() * num_ranks / (now - began)
            print(f"step: {step:5}  loss: {loss.item():8.5f}  tps: {tokens_per_s:8,.0f}", flush=True)
            began = now

    if args.final and rank == 0:
        Path(args.final).write_text(digest(model) + "\n")
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
