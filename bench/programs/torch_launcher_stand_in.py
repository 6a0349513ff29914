"""One of PyTorch's test files, with `everstep run` behind the name `torch.distributed.run.main`.

Started by torch_launcher_tests.py in a process of its own: CASE_FILE is the test file, CASE_LAUNCHER says which
launcher. The output of the command goes through this process's own streams, because tests replace these.
"""

import importlib.util
import os
import subprocess
import sys
import unittest
from collections.abc import Sequence

import torch.distributed.run as torchrun
from torch.distributed.elastic import events
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure


def everstep(args: Sequence[str] | None = None) -> None:
    command = [sys.executable, "-m", "everstep.cli.main", "run", *(sys.argv[1:] if args is None else args)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    sys.stdout.write(ran.stdout)
    sys.stderr.write(ran.stderr)
    if ran.returncode == 0:
        return
    if _is_refused(ran.stderr):
        raise ValueError(ran.stderr)
    events.record(None)  # type: ignore[arg-type]  # tests count the event of a failure, which is torchrun's own affair
    failed = ProcessFailure(local_rank=0, pid=0, exitcode=ran.returncode, error_file="none")
    raise ChildFailedError(name="everstep run", failures={0: failed})


def _is_refused(said: str) -> bool:
    """Before anything ran: no line says that a generation was started."""
    return " gen 0: " not in said


def main() -> None:
    if os.environ["CASE_LAUNCHER"] == "everstep":
        torchrun.main = everstep
    spec = importlib.util.spec_from_file_location("torch_case", os.environ["CASE_FILE"])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["torch_case"] = module
    spec.loader.exec_module(module)
    unittest.main(module=module)


if __name__ == "__main__":
    main()
