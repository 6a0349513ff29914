"""Steps, losses and timeouts in log lines of Megatron, torchtitan, Hugging Face and plain loops. Pure.

Reads one line at a time and gives None for everything that it does not know.
"""

import re
from typing import TypeAlias

import msgspec

from everstep.analyzer.numbers.series import Point

MAX_LINE = 4_000
"""Longer lines are cut: progress bars rewrite one line for hours."""

RANK_WITHIN = 200
"""A line names its rank near its begin."""

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_WHOLE = r"(?:\d{1,3}(?:,\d{3}){1,6}|\d{1,24})"
_NUMBER = rf"([+-]?(?:{_WHOLE}(?:\.\d{{0,24}})?(?:[eE][+-]?\d{{1,4}})?|nan|inf(?:inity)?))\b"
"""All repetitions are bounded: a line of a million digits must not be tried from each of them."""

_MEGATRON = re.compile(r"\biteration\s+(\d{1,12})/\s*\d{1,12}\s*\|")
_STEP = re.compile(r"(?:\b(?:step|iter|iteration|global_step)['\"]?\s{0,3}[:=#]?\s{0,8})(\d{1,12})\b", re.I)
_NOT_TRAINING = "".join(
    rf"(?<!{word}[ _/.-])" for word in ("val", "valid", "validation", "eval", "evaluation", "test", "dev")
)
"""A validation loss is another number: beside the training loss it would look like a jump."""
_LOSS = re.compile(
    rf"{_NOT_TRAINING}(?<![\w-])['\"]?(?:lm loss|train_loss|loss)['\"]?\s{{0,3}}[:=]?\s{{0,8}}['\"]?{_NUMBER}", re.I
)
_GRAD = re.compile(rf"(?<![\w-])['\"]?(?:grad[ _]norm|gnorm|grad)['\"]?\s{{0,3}}[:=]?\s{{0,8}}['\"]?{_NUMBER}", re.I)
_ELAPSED = re.compile(rf"elapsed time per iteration \(ms\):\s{{0,8}}{_NUMBER}", re.I)
_SKIPPED = re.compile(r"number of skipped iterations:\s{0,8}([1-9]\d*)\b")
_BAR = re.compile(r"\|\s{0,4}(\d{1,12})/\d{1,12} \[")

Words: TypeAlias = tuple[str, ...]
_OF_LOSS: Words = ("loss",)
_OF_GRAD: Words = ("grad", "gnorm")
_OF_STEP: Words = ("step", "iter")
_OF_MEGATRON: Words = ("iteration",)
_OF_ELAPSED: Words = ("elapsed time",)
_OF_SKIPPED: Words = ("number of skipped",)
_OF_BAR: Words = ("|",)
_OF_RANK: Words = ("rank",)

_RANK_AHEAD = re.compile(r"\s*\[?(?:default)?rank\s?(\d{1,7})\]?[:\s]", re.I)
_RANK_WITHIN = re.compile(r"\[Rank (\d{1,7})\]|\brank (\d{1,7})\b", re.I)
_WATCHDOG = re.compile(
    r"\[?Rank (\d{1,7})\]?.{0,200}?collective operation timeout: Work\w+\(SeqNum=(\d{1,12}), OpType=(\w{1,40})", re.I
)
_GLOO_TIMEOUT = re.compile(
    r"Timed out waiting \d+ms for (?:recv|send) operation|Application timeout caused pair closure"
)


class Timeout(msgspec.Struct, frozen=True, kw_only=True):
    """The library's own complaint that a collective did not complete."""

    rank: int | None
    seq: int | None
    op: str


def read_point(line: str, lowered: str = "") -> Point | None:
    """Step, loss, gradient norm of one line; None when it names no loss and no gradient norm. `lowered`: the line in
    lower case, where that is known already."""
    text, lower = _cut(line, lowered)
    if "loss" not in lower and "grad" not in lower and "gnorm" not in lower:
        return None
    text, lower = _without_colours(text, lower)
    loss = _search(_LOSS, text, lower, _OF_LOSS, 7)
    grad = _search(_GRAD, text, lower, _OF_GRAD, 1) if "grad" in lower or "gnorm" in lower else None
    if not loss and not grad:
        return None
    step, elapsed, skipped = None, None, None
    if "iteration" in lower:  # Megatron's words
        step = _search(_MEGATRON, text, lower, _OF_MEGATRON)
        elapsed = _search(_ELAPSED, text, lower, _OF_ELAPSED)
        skipped = _search(_SKIPPED, text, lower, _OF_SKIPPED)
    step = step or _search(_STEP, text, lower, _OF_STEP, 7)
    elapsed_ms = _float(elapsed[1]) if elapsed else None
    return Point(
        step=int(step[1]) if step else None,
        loss=_float(loss[1]) if loss else None,
        grad_norm=_float(grad[1]) if grad else None,
        step_s=elapsed_ms / 1000 if elapsed_ms is not None else None,
        skipped=skipped is not None,
    )


def read_step(line: str, lowered: str = "") -> int | None:
    """The step that a line mentions, with a loss or without; also of Hugging Face's progress bar."""
    text, lower = _cut(line, lowered)
    if "step" not in lower and "iter" not in lower and "| " not in lower:
        return None
    text, lower = _without_colours(text, lower)
    found = (
        _search(_MEGATRON, text, lower, _OF_MEGATRON)
        or _search(_BAR, text, lower, _OF_BAR)
        or _search(_STEP, text, lower, _OF_STEP, 7)
    )
    return int(found[1]) if found else None


def read_timeout(line: str) -> Timeout | None:
    """NCCL's watchdog names rank, sequence number and operation; gloo names nothing."""
    text = line[:MAX_LINE]
    if "imeout" not in text and "imed out" not in text:
        return None
    watchdog = _WATCHDOG.search(text)
    if watchdog:
        return Timeout(rank=int(watchdog[1]), seq=int(watchdog[2]), op=watchdog[3].lower())
    return Timeout(rank=None, seq=None, op="") if _GLOO_TIMEOUT.search(text) else None


def read_rank(line: str, lowered: str = "") -> int | None:
    """`[rank3]:`, `[Rank 3]`, `rank 3`."""
    text, lower = _cut(line, lowered, RANK_WITHIN)
    found = _RANK_AHEAD.match(text) or _search(_RANK_WITHIN, text, lower, _OF_RANK, 1)
    return int(next(group for group in found.groups() if group)) if found else None


def _cut(line: str, lowered: str, length: int = MAX_LINE) -> tuple[str, str]:
    text = line[:length]
    is_known = lowered and len(lowered) == len(line)
    return text, lowered[:length] if is_known else text.lower()


def _without_colours(text: str, lower: str) -> tuple[str, str]:
    if "\x1b" not in text:
        return text, lower
    text = _ANSI.sub("", text)
    return text, text.lower()


def _search(pattern: "re.Pattern[str]", text: str, lower: str, words: Words, back: int = 0) -> "re.Match[str] | None":
    """The first match of a pattern that needs one of these words, and begins at most `back` characters before it. Most
    of a line stands before it, and a pattern that is tried there costs ten times what finding the word costs."""
    first = -1
    for word in words:
        at = lower.find(word)
        if at >= 0 and (first < 0 or at < first):
            first = at
    if first < 0:
        return None
    is_aligned = len(lower) == len(text)  # a few letters are two in lower case
    return pattern.search(text, first - back if is_aligned and first > back else 0)


def _float(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
