"""What the training programs of this folder share: a line per step, a tiny language model, data, own checkpoints.

Each rank appends a line per step to `$FW_OUT/steps.<rank>.txt`: step, loss (hex), pid, time. With `FW_HANG=STEP:RANK`
that rank sleeps before that step, once. A step takes `FW_PACE_S` longer than it needs; after the kill 0.1 s.
"""

import os
import time
from pathlib import Path

import torch
from torch import nn

OUT = Path(os.environ["FW_OUT"])
PACE_S = float(os.environ.get("FW_PACE_S", "0.1"))
RANK = int(os.environ.get("RANK", "0"))


class Steps:
    """The lines of this rank."""

    def __init__(self) -> None:
        self._path = OUT / f"steps.{RANK}.txt"
        self._hang = os.environ.get("FW_HANG", "")
        self.is_begun = False  # for programs whose first step in a process is special

    def before(self, step: int) -> None:
        if self._hang == f"{step}:{RANK}" and not (OUT / "hung").exists():
            (OUT / "hung").touch()
            time.sleep(100_000)

    def after(self, step: int, loss: float) -> None:
        time.sleep(min(PACE_S, 0.1) if (OUT / "killed").exists() else PACE_S)
        with self._path.open("a") as file:
            file.write(f"{step} {float(loss).hex()} {os.getpid()} {time.time()}\n")


class Tiny(nn.Module):
    """Embedding, residual blocks with dropout, head; returns the loss."""

    def __init__(self, vocab: int = 64, dim: int = 32, layers: int = 3, dropout: float = 0.1) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(block(dim, dropout) for _ in range(layers))
        self.head = nn.Linear(dim, vocab)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.emb(x)
        for layer in self.layers:
            h = h + layer(h)
        return nn.functional.cross_entropy(self.head(h).flatten(0, -2).float(), y.flatten())


def block(dim: int, dropout: float) -> nn.Module:
    parts = nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(4 * dim, dim)
    return nn.Sequential(*parts)


class Text(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random tokens by index, and what follows from each."""

    def __init__(self, length: int = 17) -> None:
        self._length = length

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = torch.Generator().manual_seed(index)
        x = torch.randint(0, 64, (self._length,), generator=numbers)
        return x[:-1], (x[:-1] * 7 + 3) % 64
