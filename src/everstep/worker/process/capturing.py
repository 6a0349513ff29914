"""Does the program capture a CUDA graph at this moment? Then nothing of ours may touch a device: an event that is asked
spoils the capture, and a copy that is begun becomes a part of it. Imports nothing."""

import sys
from typing import Any


def is_capturing() -> bool:
    """Of the calling thread's current stream. False where CUDA is not in use."""
    cuda: Any = sys.modules.get("torch.cuda")
    return cuda is not None and cuda.is_initialized() and bool(cuda.is_current_stream_capturing())
