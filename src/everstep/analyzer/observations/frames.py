"""Frames of a stack: whether they are the user's, and the short names of their files. Pure."""

import functools
import re
import sys

_INSTALLED = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+/|^<|/everstep/(worker|agent)/")
_SHORT = frozenset(sys.stdlib_module_names) | {
    "torch", "numpy", "everstep", "megatron", "transformers", "accelerate", "lightning", "deepspeed", "torchtitan",
    "apex", "transformer_engine", "flash_attn", "triton", "runpy", "datasets", "tokenizers", "torchdata",
}  # fmt: skip


@functools.lru_cache(maxsize=4096)
def is_user_file(file: str) -> bool:
    """A file of the user's own. Short names ("torch/nn/modules/module.py", "threading.py") count as installed."""
    if _INSTALLED.search(file):
        return False
    if file.startswith("/"):
        return True
    head, separator, _ = file.partition("/")
    return head.removesuffix(".py") not in _SHORT if separator or head.endswith(".py") else bool(file)


def short_name(file: str) -> str:
    """Path below site-packages or the standard library; the last two parts of any other."""
    parts = re.split(r"/(?:site|dist)-packages/|/lib/python3\.\d+/", file)
    if len(parts) > 1:
        return parts[-1]
    return "/".join(file.rsplit("/", 2)[-2:]) if file.startswith("/") else file
