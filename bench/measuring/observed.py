"""Processes below another, and what of the kernel they hold."""

import ctypes
import os
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


def _maps(pid: int) -> dict[int, int]:
    """Id of each of the kernel's eBPF maps that a process holds, to the bytes that it takes in the kernel."""
    texts = [each.read_text() for each in Path(f"/proc/{pid}/fdinfo").iterdir()]
    found = (re.search(r"memlock:\s+(\d+)\s+map_id:\s+(\d+)", text) for text in texts)
    return {int(each[2]): int(each[1]) for each in found if each}


def map_kib(pid: int) -> float:
    return sum(_maps(pid).values()) / 1024


def map_entries(pid: int) -> int:
    """Of all maps that can be read key by key: not those of threads."""
    libbpf, count = ctypes.CDLL("libbpf.so.1"), 0
    for number in _maps(pid):
        fd = libbpf.bpf_map_get_fd_by_id(number)
        key, following = None, ctypes.create_string_buffer(64)
        for _ in range(1 << 16):
            if libbpf.bpf_map_get_next_key(fd, key, following) < 0:
                break
            count, key = count + 1, ctypes.create_string_buffer(following.raw)
        os.close(fd)
    return count


def rss_kib(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])
    except (OSError, IndexError):
        return 0
