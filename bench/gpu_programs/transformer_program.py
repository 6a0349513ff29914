"""A small transformer on one device: tokens per second, bare or with everything attached.

    [everstep run ...] transformer_program.py MODE DEVICE SECONDS OUT

MODE `bare`: nothing of everstep is called. `attached`: State with a snapshot of each step, and the loss told.
Appends one JSON object to OUT: lengths of steps in seconds, as the device has them.
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

import everstep
from gpu_programs.gpu_model import Clock

_WARM = 15


class Transformer(nn.Module):  # type: ignore[misc]  # torch is not looked into
    """Of GPT's kind."""

    def __init__(self, width: int, layers: int, vocabulary: int = 8192) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        hidden = self.layers(self.embed(tokens), mask=mask, is_causal=True)
        logits: torch.Tensor = self.head(hidden)
        return logits


def main() -> None:
    mode, device, seconds, out = sys.argv[1], sys.argv[2], float(sys.argv[3]), Path(sys.argv[4])
    is_cuda = device != "cpu"
    torch.manual_seed(0)
    width, layers, batch, length = (1024, 12, 64, 512) if is_cuda else (64, 2, 2, 32)
    model = Transformer(width, layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, 8192, (batch, length), device=device)
    state = everstep.State(model=model, optimizer=optimizer) if mode == "attached" else None
    if state is not None:
        state.begin()
    clock = Clock(device)
    number, until = 0, float("inf")
    while time.monotonic() < until:
        with torch.autocast(device.partition(":")[0], dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if state is not None:
            state.complete_step()
            everstep.step(loss=loss)
        number += 1
        if number == _WARM:
            clock.lengths_s()
            until = time.monotonic() + seconds
        if number >= _WARM:
            clock.mark()
    took = clock.lengths_s()
    if state is not None:
        state.finish()
    size = sum(p.nbytes for p in model.parameters()) * 3
    with out.open("a") as file:
        file.write(json.dumps({"mode": mode, "took_s": took, "tokens": batch * length, "state_bytes": size}) + "\n")


if __name__ == "__main__":
    main()
