"""Notes which files of everstep a controller's turns go through. Its folder stands in PYTHONPATH; every process of the
run imports it, and only a controller is traced.

A turn is one call of `Controller._handle`, with what it has written by another thread. Left in $EVERSTEP_STORY when the
process ends: a JSON line per turn with its inputs and its hops, the files in which functions were called, one after the
other, each as often as it was come to. Comprehensions belong to the function that they stand in.
"""

import atexit
import json
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

_IS_CONTROLLER = "everstep.controller" in sys.orig_argv
_MARK = os.sep + "everstep" + os.sep


class Tracer:
    def __init__(self, path: str) -> None:
        self._path = path
        self._turns: list[dict[str, Any]] = []
        self._handling: FrameType | None = None  # the turn that has begun; kept, so that no other one has its place
        self._depth = 0  # of calls within it, as it runs now
        self._names: dict[str, str] = {}
        self.others: set[str] = set()  # entered outside of turns

    def begin(self) -> None:
        atexit.register(self.save)
        threading.setprofile(self.aside)
        sys.setprofile(self.look)

    def look(self, frame: FrameType, what: str, _arg: object) -> None:
        if what == "call":
            name = self._name(frame.f_code.co_filename)
            if not self._depth and name == "controller/loop.py" and frame.f_code.co_name == "_handle":
                self._enter(frame)
                return
            if self._depth:
                self._depth += 1
                if name and not frame.f_code.co_name.startswith("<"):
                    self._hop(name)
            elif name:
                self.others.add(name)
        elif what == "return" and self._depth:
            self._depth -= 1

    def aside(self, frame: FrameType, what: str, _arg: object) -> None:
        """In another thread: what the ledger writes is the turn's."""
        if what == "call" and self._turns and (name := self._name(frame.f_code.co_filename)):
            if name.startswith(("controller/record", "journal")):
                self._hop(name)
            else:
                self.others.add(name)

    def _enter(self, frame: FrameType) -> None:
        self._depth = 1
        if self._handling is frame:
            return  # it goes on, after others had their turn
        self._handling = frame
        inputs = [(item.source, item.seq, type(item.event).__name__) for item in frame.f_locals["batch"]]
        self._turns.append({"inputs": inputs, "hops": ["controller/loop.py"]})

    def _hop(self, name: str) -> None:
        hops = self._turns[-1]["hops"]
        if hops[-1] != name:
            hops.append(name)

    def _name(self, path: str) -> str:
        """Below the package; empty: of somebody else."""
        known = self._names.get(path)
        if known is None:
            _, mark, name = path.rpartition(_MARK)
            known = self._names[path] = name if mark and "site-packages" not in name else ""
        return known

    def save(self) -> None:
        sys.setprofile(None)
        with Path(self._path).open("w", encoding="utf-8") as file:
            for turn in self._turns:
                file.write(json.dumps(turn) + "\n")
            file.write(json.dumps({"others": sorted(self.others)}) + "\n")


if _IS_CONTROLLER and os.environ.get("EVERSTEP_STORY"):
    Tracer(os.environ["EVERSTEP_STORY"]).begin()
