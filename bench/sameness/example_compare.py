"""What two launchers made of a public example: its words, its files, what it logged; and where the two differ.

Normalised, because it differs between two runs of one launcher: times of day and durations, rates, process ids,
ports, host names, addresses, progress bars and what datasets says of its cache (which rank makes it while the other
waits is chance), empty lines, the framework's log lines with their time stamps (same_compare.calm). Weights are
compared as tensors, TensorBoard's files as what was logged. Called by public_examples.py.
"""

import io
import pickle
import re
import socket
from collections.abc import Iterator, Mapping

from sameness.same_compare import Outcome, differences

_SHORTER = (
    (re.compile(rb"[^\r\n]*?\d+%\|[^\r\n]*\|[^\r\n]*(?:\r|(?=\n)|$)"), b""),  # bars: what is said beside them stays
    (re.compile(rb"[^\r\n]*?: \d+ examples \[[^\r\n]*(?:\r|(?=\n)|$)"), b""),
    (re.compile(rb"\r"), b""),
    (
        re.compile(
            rb"[^\n]*(?:Generating (?:dataset|\w+ split)|Downloading and preparing|Downloading took|Checksum Comp|"
            rb"Unable to verify splits|downloaded and prepared to|Found cached dataset|Loading cached|Caching |"
            rb"Overwrite dataset info|Loading Dataset [Ii]nfo)[^\n]*\n"
        ),
        b"",
    ),
    (re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]"), b""),
    (re.compile(rb"\d{4}-\d\d-\d\d[ T_]\d\d[:-]\d\d[:-]\d\d(?:[.,]\d+)?|\d\d/\d\d/\d{4} \d\d:\d\d:\d\d"), b"<time>"),
    (re.compile(rb"\b[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_[\w.-]+"), b"<time and host>"),
    (
        re.compile(rb"(\w*(?:per_second|runtime|dt|time)['\"]?)\s*([:=]?)\s*['\"]?\d[\d.:e+-]*['\"]?"),
        rb"\1\2 <time>",
    ),
    (re.compile(rb"\b\d+(?:\.\d+)?\s?(?:ms/batch|ms|s/it|it/s|sec|seconds|s|[kKMG]?B/s|examples/s)\b"), b"<time>"),
    (re.compile(rb"((?:localhost|127\.0\.0\.1):)\d+"), rb"\1<port>"),
    (re.compile(rb"(?i)\b(pid[ =:]*)\d+"), rb"\1<pid>"),
    (re.compile(rb"\bms/batch\s+[\d.]+"), b"ms/batch <time>"),
    (re.compile(rb"(offline-run)-\d{8}_\d{6}-[a-z0-9]{8}"), rb"\1-<time>"),
    (re.compile(rb"_1[789]\d{8}\b"), b"_<time>"),
)
_NAMES = (
    (re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d|[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_[^/]*"), "<time>"),
    (re.compile(r"(events\.out\.tfevents)\.\d+\.[^/]*?(\.v2)?$"), r"\1"),
    (re.compile(r"(offline-run)-\d{8}_\d{6}-[a-z0-9]{8}"), r"\1-<time>"),
    (re.compile(r"run-[a-z0-9]{8}\.wandb$"), "run.wandb"),
    (re.compile(r"(?<=[_/])1[789]\d{8}(?:\.\d+)?"), "<time>"),
)
_NUMBER = re.compile(rb" *[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)? *|\bnan\b|\binf\b")
_WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".tar", ".distcp")
_OF_WANDB = re.compile(r"wandb/.*(?:\.log|\.wandb)$")  # its own diary, with ids in each line
_OF_TIME = re.compile(r"time|second|runtime", re.IGNORECASE)


def words(text: bytes, *, draws: bool = False) -> bytes:
    """Without what two runs of one launcher do not share; `draws`: without any number."""
    host = socket.gethostname().encode()
    text = text.replace(host, b"<host>") if len(host) > 3 else text
    for pattern, shorter in _SHORTER:
        text = pattern.sub(shorter, text)
    text = re.sub(rb"\n\s*\n", b"\n", text).lstrip(b"\n")
    return _NUMBER.sub(b"<number>", text) if draws else text


def called(name: str) -> str:
    for pattern, shorter in _NAMES:
        name = pattern.sub(shorter, name)
    return name


def plain(taken: Outcome, *, draws: bool = False) -> Outcome:
    """`taken`, with everything that two runs of one launcher do not share masked, and files as what they mean."""
    files: dict[str, bytes] = {}
    for name, data in sorted(taken.files.items()):
        here = called(name)
        number = sum(each.startswith(here) for each in files)
        files[here if number == 0 else f"{here} ({number + 1})"] = meaning(name, data, draws=draws)
    streams = {name: words(text, draws=draws) for name, text in taken.streams.items()}
    return Outcome(exit_code=taken.exit_code, streams=streams, files=files, draws={}, took_s=taken.took_s)


def meaning(name: str, data: bytes, *, draws: bool = False) -> bytes:
    """One line for each tensor, logged value or entry; what cannot be read so stays as it is."""
    try:
        if "tfevents" in name:
            lines = list(_events(data))
        elif name.endswith(".safetensors"):
            import safetensors.torch

            named = sorted(safetensors.torch.load(data).items())  # it hands them out in another order each time
            lines = list(_entries("", dict(named), draws=draws))
        elif name.endswith(_WEIGHTS):
            lines = list(_entries("", _loaded(data), draws=draws))
        else:
            return b"(of wandb)" if _OF_WANDB.search(name) else words(data, draws=draws)
    except Exception:  # as unreadable for one launcher as for the other, or that is the difference
        return data
    text = "\n".join(lines).encode()
    return _NUMBER.sub(b"<number>", text) if draws else text


def _loaded(data: bytes) -> object:
    import torch

    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
    except RuntimeError:
        return pickle.loads(data)


def _entries(at: str, value: object, *, draws: bool) -> Iterator[str]:
    import torch

    if isinstance(value, torch.Tensor):
        shape = f"{at} {value.dtype} {tuple(value.shape)}"
        yield shape if draws else f"{shape} {_bits(value)}"
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _entries(f"{at}.{key}", inner, draws=draws)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _entries(f"{at}[{number}]", inner, draws=draws)
    elif not _OF_TIME.search(at):
        state = vars(value) if hasattr(value, "__dict__") and not isinstance(value, type) else {}
        yield f"{at} {type(value).__name__}" if state else f"{at} {words(repr(value).encode()).decode()}"
        yield from _entries(at, {k: v for k, v in state.items() if not callable(v)}, draws=draws) if state else ()


def _bits(tensor: object) -> str:
    import hashlib

    import torch

    raw = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(raw).hexdigest()[:16]


def _events(data: bytes) -> Iterator[str]:
    """What was logged: tag, step, value; not when, and no durations."""
    from tensorboard.compat.proto.event_pb2 import Event

    at = 0
    while at + 12 <= len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        event = Event.FromString(data[at + 12 : at + 12 + size])
        at += size + 16
        for value in event.summary.value:
            if not _OF_TIME.search(value.tag):
                yield f"{value.tag} {event.step} {value.simple_value!r} {words(value.tensor.SerializeToString())!r}"


def last_try(taken: Outcome) -> dict[str, bytes]:
    """The streams of each rank's last start, called as if it had been the first."""
    last: dict[str, tuple[int, bytes]] = {}
    for name, text in taken.streams.items():
        rank, number, stream = re.fullmatch(r"(rank \d+) try (\d+) (\w+)", name).groups()  # type: ignore[union-attr]
        key = f"{rank} try 0 {stream}"
        if int(number) >= last.get(key, (-1, b""))[0]:
            last[key] = int(number), text
    return {name: text for name, (_, text) in last.items()}


def after_a_kill(expected: Outcome, killed: Outcome) -> list[str]:
    """As if nobody had been killed: the exit code, the files, and the words of the last start. A rank that comes back
    goes on in its twin, so what it said before the rendezvous is not said again: the end of the words has to be equal.
    """
    now = last_try(killed)
    streams = {
        name: now[name] if name not in now or not text.endswith(now[name]) or not _much(now[name], text) else text
        for name, text in last_try(expected).items()
        if name in now
    }
    shown = Outcome(exit_code=killed.exit_code, streams=streams, files=killed.files, draws={}, took_s=killed.took_s)
    first = Outcome(
        exit_code=expected.exit_code, streams=last_try(expected), files=expected.files, draws={}, took_s=0.0
    )
    return differences(first, shown)


def _much(some: bytes, whole: bytes) -> bool:
    """At least its last line: nothing at all is no end of anything that has words."""
    return not whole.strip() or bool(some.strip())


def not_of(found: list[str], own: list[str]) -> list[str]:
    """The differences whose subject is not among `own`: those that a launcher has with itself."""
    subjects = {each.split(":", 1)[0] for each in own}
    return [each for each in found if each.split(":", 1)[0] not in subjects]
