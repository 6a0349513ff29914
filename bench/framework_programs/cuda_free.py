"""Lets megatron-core run where there is no CUDA: where it asks for the current device it gets the CPU.

Imported before megatron. Named generators then keep states of the CPU's generator.
"""

import logging

import torch

_type = torch.Tensor.type


def _cuda_type(self, *args, **kwargs):
    return _type(self, *args, **kwargs) if args or kwargs else _type(self).replace("torch.", "torch.cuda.")


def _on_cpu(make):
    def made(*args, **kwargs):
        if "cuda" in str(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return make(*args, **kwargs)

    return made


def _nothing(*_args, **_kwargs):
    return None


def put_in_place() -> None:
    if torch.cuda.is_available():
        return
    from megatron.core.tensor_parallel import random  # before torch is changed: it loads torch's compiler

    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = torch.cuda.set_device = _nothing
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.get_rng_state = torch.cuda.random.get_rng_state = lambda *_a, **_k: torch.get_rng_state()
    torch.cuda.manual_seed = torch.manual_seed
    torch.Tensor.cuda = lambda self, *_a, **_k: self
    torch.Tensor.type = _cuda_type
    for name in ("tensor", "zeros", "empty", "ones", "full"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    random._set_cuda_rng_state = lambda new, *_a, **_k: torch.set_rng_state(new)
    logging.getLogger(random.__name__).setLevel(logging.ERROR)
