"""The sums that are compared bit by bit: same inputs on every machine, one thread, a digest of the raw result.

Runs in forked processes of a check, after `import torch` and before any computation in the parent. Inputs come from
integer arithmetic, so they have the same bits everywhere; results have the same bits on machines with the same CPU
type, libraries and number of threads, and on those only.
"""

import ctypes
import hashlib
import time
from typing import Any

DTYPES = ("float32", "float64", "bfloat16")
_SEED = 20261121
_MIN_REPEATS = 2
_AT_ONCE = 16  # on a GPU: one product is over before the next is launched, and launching would be measured
_ENOUGH_S = 8.0  # a busy node is measured with fewer repeats, not waited for


def torch_problem() -> str:
    """Imports torch in this process; the reason if it cannot be had."""
    try:
        import torch
    except Exception as error:  # a broken build raises anything
        return f"torch cannot be imported: {type(error).__name__}: {error}"
    return "" if torch.__version__ else "torch has no version"


def filled(rows: int, columns: int, dtype: str, salt: int) -> Any:  # noqa: ANN401  (a tensor; torch is not imported here)
    """A matrix of numbers in [-0.5, 0.5) with 2^-16 steps: exact in float32 and float64, rounded alike in bfloat16."""
    import torch

    index = torch.arange(rows * columns, dtype=torch.int64)
    mixed = ((index + 1) * 2654435761 + (salt + _SEED) * 40503) % 4294967291
    mixed = (mixed * 48271) % 2147483647
    return ((mixed % 65536).to(torch.float64) / 65536 - 0.5).to(getattr(torch, dtype)).reshape(rows, columns)


def digest(tensor: Any) -> str:  # noqa: ANN401
    """SHA-256 of the raw bytes, first 16 digits. The bytes decide, not the numbers: -0.0 is not 0.0 here."""
    flat = tensor.detach().cpu().contiguous()
    return hashlib.sha256(ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())).hexdigest()[:16]


def products(dtype: str, side: int, repeats: int, device: str = "cpu") -> dict[str, Any]:
    """`repeats` matrix products on one thread, or times so many on a GPU that it is never idle: the digest of each, or
    of each time's last, and what the fastest took."""
    import torch

    torch.set_num_threads(1)
    left, right = (filled(side, side, dtype, salt).to(device) for salt in (1, 2))
    digests, times, wrong = [], [], 0
    at_once = _AT_ONCE if device.startswith("cuda") else 1
    if at_once > 1:
        _ = left @ right  # the first one loads the library
    for _ in range(repeats):
        _finish(device)
        begun = time.perf_counter()
        for _ in range(at_once):
            result = left @ right
        _finish(device)
        times.append((time.perf_counter() - begun) / at_once)
        digests.append(digest(result))
        wrong += dtype == "float64" and not is_exact(left.cpu(), right.cpu(), result.cpu())
        if len(times) >= _MIN_REPEATS and sum(times) > _ENOUGH_S:
            break
    return {"digests": digests, "best_s": min(times), "wrong": wrong}


def is_exact(left: Any, right: Any, result: Any) -> bool:  # noqa: ANN401
    """Freivalds' check in integers: `result` is the true product, bit by bit, without comparing with another machine.

    Inputs are multiples of 2^-16, so the float64 product of up to 2^20 columns has no rounding and any order of the sum
    gives the same bits. The sum of each row finds any single wrong element; two that cancel out need the second look.
    """
    import torch

    scale = 65536
    a, b = (left * scale).to(torch.int64), (right * scale).to(torch.int64)
    c = (result * scale * scale).to(torch.int64)
    if not torch.equal(c.to(torch.float64) / (scale * scale), result):
        return False
    ones = torch.ones(b.shape[1], 1, dtype=torch.int64)
    odd = (torch.arange(b.shape[1], dtype=torch.int64) * 2654435761 >> 7 & 1).reshape(-1, 1)
    return all(bool(torch.equal(a @ (b @ pick), c @ pick)) for pick in (ones, odd))


def copies(size: int, repeats: int, source: str = "cpu", target: str = "cpu") -> dict[str, Any]:
    """`repeats` copies of a buffer of `size` bytes on one thread: the median rate, and whether the copy is equal.

    Within one memory each byte is read and written there, so it counts twice; between two it counts once.
    """
    import torch

    torch.set_num_threads(1)
    original = torch.arange(size // 8, dtype=torch.int64)
    on_gpu = [device.startswith("cuda") for device in (source, target)]
    is_between = any(on_gpu) and not all(on_gpu)
    # The host's side is pinned, so that the GPU can fetch it by itself.
    have = original.pin_memory() if is_between and not on_gpu[0] else original.to(source)
    copy = torch.empty_like(original, device=target, pin_memory=is_between and not on_gpu[1])
    copy.copy_(have)  # touch both before the clock runs
    rates = []
    started = time.perf_counter()
    for _ in range(repeats):
        _finish(source, target)
        begun = time.perf_counter()
        copy.copy_(have)
        _finish(source, target)
        rates.append((1 if is_between else 2) * original.numel() * 8 / (time.perf_counter() - begun))
        if len(rates) >= _MIN_REPEATS and time.perf_counter() - started > _ENOUGH_S:
            break
    rates.sort()
    return {"median_rate": rates[len(rates) // 2], "is_equal": bool(torch.equal(copy.cpu(), original))}


def _finish(*devices: str) -> None:
    import torch

    for device in devices:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)


def trained(steps: int) -> dict[str, Any]:
    """`steps` of training on one thread, then an inference: digests after each, losses, and median times."""
    import torch

    torch.set_num_threads(1)
    width, tokens = 128, 64
    shapes = {"in": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
    parameters = {
        name: (filled(*shape, "float32", salt) * (2.0 / width**0.5)).requires_grad_()
        for salt, (name, shape) in enumerate(shapes.items())
    }
    inputs, targets = filled(tokens, width, "float32", 11), filled(tokens, width, "float32", 12)
    history, losses, times = [], [], []
    for _ in range(steps):
        begun = time.perf_counter()
        loss = ((_block(inputs, parameters) - targets) ** 2).mean()
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        with torch.no_grad():
            for parameter, gradient in zip(parameters.values(), gradients, strict=True):
                parameter -= 0.5 * gradient
        times.append(time.perf_counter() - begun)
        losses.append(float(loss))
        history.append(
            {"loss": digest(loss), "gradients": _digests(gradients), "parameters": _digests(parameters.values())}
        )
    with torch.no_grad():
        begun = time.perf_counter()
        output = _block(inputs, parameters)
        inference_s = time.perf_counter() - begun
    training_s = sorted(times)[len(times) // 2]
    return {
        "steps": history, "losses": losses, "training_s": training_s, "inference": digest(output),
        "inference_s": inference_s,
    }  # fmt: skip


def _block(x: Any, parameters: dict[str, Any]) -> Any:  # noqa: ANN401
    """Attention and feed-forward of one transformer block, one head."""
    import torch

    query, key, value = (x @ parameters["in"]).chunk(3, dim=-1)
    scores = torch.softmax(query @ key.T / query.shape[-1] ** 0.5, dim=-1)
    x = x + (scores @ value) @ parameters["out"]
    return x + torch.nn.functional.gelu(x @ parameters["up"]) @ parameters["down"]


def _digests(tensors: Any) -> str:  # noqa: ANN401
    return hashlib.sha256("".join(digest(tensor) for tensor in tensors).encode()).hexdigest()[:16]
