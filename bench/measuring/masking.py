"""Takes names out of a log before it is kept: hosts, people, addresses, paths, buckets and serial numbers. Secrets are
taken out by `everstep.report.handing.masking`.

The same name gets the same stand-in throughout, so that what a log says of who did what stays. It cannot know every
name that somebody may have chosen: whoever keeps a log reads it first. Pure.
"""

import re
from collections.abc import Callable

_KEPT_PARTS = ("usr", "lib", "lib64", "opt", "proc", "sys", "dev", "tmp", "etc", "var", "bin")
_STAND_INS: tuple[tuple[str, str, str], ...] = (
    # kind, pattern with the name in group 1, or the whole match
    ("mail", r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b", "user-{}@example.org"),
    ("account", r"(?<=[\s(])([a-z][\w.-]{1,31})@[\w-]+(?=[\s:,)]|$)", "user-{}"),
    ("uuid", r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "id-{}"),
    ("mac", r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b", "mac-{}"),
    ("bucket", r"(?<=://)([\w.-]+)(?=[/:\s'\")\]]|$)", "server-{}"),
    ("address", r"\b(?!127\.0\.0\.1\b|0\.0\.0\.0\b)(?:\d{1,3}\.){3}\d{1,3}\b", "192.0.2.{}"),
    ("address6", r"\bfe80(?:::?[0-9a-fA-F]{0,4}){2,7}\b", "fe80::{}"),
    ("home", r"(?:(?<=/home/)|(?<=/users/)|(?<=/Users/)|(?<=/scratch/)|(?<=/lustre/))([\w.-]+)", "user-{}"),
    ("person", r"(?i:(?<=\bby user )|(?<=\brequest of )|(?<=\buser=))([\w.-]+)", "user-{}"),
    ("host", r"\b([A-Za-z][\w-]*(?:\.[\w-]+)*\.(?:com|net|org|edu|gov|internal|local|cluster|lan|io))\b", "host-{}"),
    ("host", r"(?<=\d\d:\d\d:\d\d )([A-Za-z][\w.-]*)(?= (?:kernel|systemd|slurmd|slurmctld|nvidia)[\[:])", "host-{}"),
    (
        "host",
        r"(?:(?<=\bON )|(?<=\bnode )|(?<=\bNode )|(?<=\bhost )|(?<=\bserver ))([A-Za-z][\w.-]*\d[\w.-]*)",
        "host-{}",
    ),
    ("host", r"(?<=srun: error: )([\w.-]+)(?=: task)", "host-{}"),
)


def masked(text: str) -> str:
    """The text without names."""
    known: dict[str, str] = {}
    for kind, pattern, stand_in in _STAND_INS:
        text = re.sub(pattern, _replacing(kind, stand_in, known), text)
    for name, chosen in sorted(known.items(), key=lambda item: -len(item[0])):
        if len(name) > 3:  # the same name where nothing beside it says what it is
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", chosen, text)
    return text


def _replacing(kind: str, stand_in: str, known: dict[str, str]) -> Callable[["re.Match[str]"], str]:
    def replace(match: "re.Match[str]") -> str:
        whole = match[0]
        name = next((group for group in match.groups() if group), whole)
        if name in _KEPT_PARTS or name in known.values() or re.fullmatch(r"(?:host|user|server|id|mac)-\d+", name):
            return whole
        prefix = stand_in.partition("{}")[0]
        number = 1 + sum(chosen.startswith(prefix) for chosen in set(known.values()))
        return whole.replace(name, known.setdefault(name, stand_in.format(number)))

    return replace
