"""What a part of bench/gpu.py writes: figures, one line each, as they come.

A part may be killed at any moment; what it has written counts. Started as `python bench/gpu_parts/NAME.py REQUEST`,
with a `Request` as JSON; `run` does the rest.
"""

import dataclasses
import json
import operator
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

_MET: dict[str, Callable[[Any, Any], bool]] = {"<=": operator.le, ">=": operator.ge, "is": operator.eq}


class SkipError(Exception):
    """This part has no meaning here; the reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What a part is asked for. `device`: "cuda:0", or "cpu" in a rehearsal, where sizes are small."""

    device: str
    folder: str  # for its files
    sizes_gb: tuple[float, ...]
    out: str  # a file for its figures
    limit_s: float

    @property
    def is_rehearsal(self) -> bool:
        return self.device == "cpu"

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def programs(self) -> Path:
        return Path(__file__).parents[1] / "gpu_programs"


class Report:
    """The figures of one part."""

    def __init__(self, out: Path) -> None:
        self._out = out

    def figure(self, name: str, value: object, unit: str = "", goal: str = "", note: str = "") -> None:
        """`goal`: "<= 0.01", ">= 0.8", "is true"; empty where there is none. A value of None is not known, and meets
        nothing."""
        self._write({"name": name, "value": value, "unit": unit, "goal": goal, "met": _met(value, goal), "note": note})

    def skipped(self, name: str, why: str) -> None:
        self._write({"name": name, "skipped": why})

    def failed(self, name: str, error: BaseException) -> None:
        """Some of the part could not be done; the part goes on."""
        what = f"{type(error).__name__}: {error}"
        self._write({"name": name, "failed": what[:600], "where": traceback.format_exc()[-1500:]})

    def attempt(self, name: str, act: Callable[[], object]) -> None:
        """Do this; whatever it raises is in the report, and the next thing gets its turn."""
        try:
            act()
        except SkipError as why:
            self.skipped(name, str(why))
        except Exception as error:
            self.failed(name, error)

    def _write(self, record: dict[str, object]) -> None:
        with self._out.open("a") as file:
            file.write(json.dumps(record) + "\n")


def _met(value: object, goal: str) -> bool | None:
    if not goal:
        return None
    how, _, what = goal.partition(" ")
    if value is None:
        return False
    return _MET[how](value, json.loads(what))


def run(main: Callable[[Request, Report], None]) -> None:
    """The whole of a part's process."""
    given = json.loads(sys.argv[1])
    request = Request(**{**given, "sizes_gb": tuple(given["sizes_gb"])})
    report = Report(Path(request.out))
    try:
        main(request, report)
    except SkipError as why:
        report.skipped("", str(why))
    except BaseException as error:
        report.failed("", error)
        raise
