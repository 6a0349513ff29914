"""Processes below another, and what of the kernel they hold."""

import re
from collections.abc import Iterator
from pathlib import Path


def descendants(pid: int) -> Iterator[int]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = children.read_text().split()
        except OSError:
            continue
        for child in found:
            yield int(child)
            yield from descendants(int(child))


def pid_of(what: str, below: int) -> int | None:
    """Of the process whose command has these words."""
    return next((pid for pid in descendants(below) if what in command_of(pid)), None)


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def attached(pid: int) -> tuple[set[int], set[int]]:
    """Ids of the kernel's eBPF programs and links that a process holds."""
    try:
        texts = [each.read_text() for each in Path(f"/proc/{pid}/fdinfo").iterdir()]
    except OSError:
        return set(), set()
    ids = {kind: {int(found[1]) for text in texts if (found := re.search(rf"{kind}_id:\s+(\d+)", text))}
           for kind in ("prog", "link")}  # fmt: skip
    return ids["prog"], ids["link"]


def rss_kib(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])
    except (OSError, IndexError):
        return 0
