"""A training (arguments: steps, pause in seconds) whose losses and final parameters show whether it resumed exactly.
For tests that lose machines and compare it with one that lost none."""

TRAIN = """
import hashlib, sys, time
import torch, torch.distributed as dist
import everstep
dist.init_process_group("gloo")
rank, steps, pause_s = dist.get_rank(), int(sys.argv[1]), float(sys.argv[2])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(100 + rank)
state = everstep.State(model=model, optimizer=optimizer)
for step in state.steps(steps):
    loss = model(torch.randn(8, 64)).square().mean()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    optimizer.step(); optimizer.zero_grad()
    time.sleep(pause_s)
    print("step", step, loss.item(), flush=True)
numbers = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print("final", hashlib.sha256(numbers).hexdigest(), flush=True)
dist.destroy_process_group()
"""
