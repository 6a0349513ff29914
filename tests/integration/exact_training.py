"""A training whose losses and final parameters show whether it resumed exactly.

For tests that lose machines and compare it with one that lost none. Arguments: steps, pause in seconds, and, where it
is to be hit, a step that the first generation waits at: it does not end before, however late the hit comes.
"""

TRAIN = """
import hashlib, os, sys, time
import uncompiled, torch, torch.distributed as dist
import everstep
dist.init_process_group("gloo")
rank, steps, pause_s = dist.get_rank(), int(sys.argv[1]), float(sys.argv[2])
waits_at = int(sys.argv[3]) if len(sys.argv) > 3 and os.environ["EVERSTEP_GENERATION"] == "0" else -1
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(100 + rank)
state = everstep.State(model=model, optimizer=optimizer)
for step in state.steps(steps):
    if step == waits_at:
        with everstep.paused("until it is hit"):
            time.sleep(1e6)
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
