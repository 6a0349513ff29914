"""What is kept of a run of bench/gpu.py: one JSON document and one Markdown table, whole after every figure.

Each is written beside its place and renamed over it, so that a command that is killed leaves what it had.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

RUNNING, DONE, FAILED, OUT_OF_TIME, SKIPPED = "running", "done", "failed", "out of time", "skipped"

_LAST_BYTES = 6000


@dataclasses.dataclass(slots=True)
class Kept:
    """One part."""

    name: str
    title: str
    state: str = ""  # empty: it has not begun
    why: str = ""
    took_s: float = 0.0
    figures: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """It came to its end, and so did all that it tried."""
        return self.state in (DONE, SKIPPED) and not any("failed" in each for each in self.figures)


class Keeping:
    """The files of one run."""

    def __init__(self, folder: Path, about: dict[str, Any], parts: list[Kept]) -> None:
        self._folder = folder
        self._about = about
        self.parts = parts

    def write(self) -> None:
        document = {"about": self._about, "parts": [dataclasses.asdict(part) for part in self.parts]}
        # The table first: whoever finds a figure in gpu.json finds it there as well, also when this is killed between.
        _replace(self._folder / "gpu.md", table(self._about, self.parts))
        _replace(self._folder / "gpu.json", json.dumps(document, indent=1) + "\n")

    def append_log(self, part: Kept, outputs: list[Path]) -> None:
        """The last words of each of a part's processes, in gpu.log."""
        with (self._folder / "gpu.log").open("a") as log:
            for output in outputs:
                data = output.read_bytes()[-_LAST_BYTES:].decode(errors="replace")
                log.write(f"===== {part.name} {part.state}: {output.parent.name}/{output.name}\n{data}\n")


def _replace(path: Path, text: str) -> None:
    draft = path.with_suffix(f"{path.suffix}.draft")
    draft.write_text(text)
    draft.replace(path)


def table(about: dict[str, Any], parts: list[Kept]) -> str:
    """As Markdown, for docs/gpu.md."""
    lines = [", ".join(f"{name}: {value}" for name, value in about.items()) + "\n"]
    lines += ["| part | figure | value | goal | met |", "|---|---|---|---|---|"]
    for part in parts:
        lines += _rows(part)
    return "\n".join(lines) + "\n"


def _rows(part: Kept) -> list[str]:
    rows = [_row(part.title, each) for each in part.figures]
    if part.state == DONE and rows:
        return rows
    said = {"": "not begun", DONE: "no figure"}.get(part.state, part.state)
    return [*rows, f"| {part.title} | | {said}{': ' if part.why else ''}{_cell(part.why)} | | |"]


def _row(title: str, figure: dict[str, Any]) -> str:
    name = _cell(figure["name"])
    if "skipped" in figure:
        return f"| {title} | {name} | skipped: {_cell(figure['skipped'])} | | |"
    if "failed" in figure:
        return f"| {title} | {name} | **failed**: {_cell(figure['failed'])} | | |"
    met = {True: "yes", False: "**no**", None: ""}[figure["met"]]
    note = f" ({_cell(figure['note'])})" if figure["note"] else ""
    return f"| {title} | {name} | {shown(figure['value'], figure['unit'])}{note} | {figure['goal']} | {met} |"


def shown(value: object, unit: str) -> str:
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return _cell(str(value))
    if unit == "share":
        return f"{value:.2%}"
    return f"{value:.4g} {unit}".strip()


def _cell(text: str) -> str:
    return " ".join(str(text).replace("|", "\\|").split())[:300]
