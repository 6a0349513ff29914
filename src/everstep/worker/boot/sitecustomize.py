"""Lets a rank be started as `python -u train.py ...`, the very command line of torchrun, and still be one of ours.

The agent puts this folder in front of PYTHONPATH; the interpreter imports `sitecustomize` from it before it runs the
program. Everything that the folder needed is taken back here, so the program sees its own environment and path. Nothing
but `os` and `sys` is imported: what the program imports first must be what it finds first.
"""

import os
import sys


def _take_back() -> str:
    """The program's own PYTHONPATH and sys.path. Returns the folder that holds the package."""
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != own]
    sys.path_importer_cache.pop(own, None)
    theirs = os.environ.pop("EVERSTEP_PYTHONPATH", None)
    if theirs is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = theirs
    return os.path.dirname(os.path.dirname(os.path.dirname(own)))


def _begin() -> None:
    root = _take_back()
    link = os.environ.pop("EVERSTEP_LINK_FD", "")
    agent = os.environ.pop("EVERSTEP_AGENT_PID", "")
    is_spare = os.environ.pop("EVERSTEP_SPARE", "") == "1"
    if not link.isdigit() or not agent.isdigit():
        return
    sys.path.insert(0, root)
    try:
        from everstep.worker.parking import begin
    finally:
        sys.path.remove(root)
    begin.begin(int(link), int(agent), is_spare=is_spare, install=_install)
    sys.modules.pop("__future__", None)


def _install(process: object, assignment: "tuple[dict[str, object], list[int]] | None") -> None:
    """The runtime, when the program has torch, or asks for it."""
    from everstep.worker.start import installing

    installing.install(process, assignment)  # type: ignore[arg-type]  # its types would be an import


def _hand_over() -> None:
    """Be the `sitecustomize` that would have been found without this one, or none."""
    from _frozen_importlib_external import PathFinder

    spec = PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
    module = type(sys)("sitecustomize")
    module.__spec__, module.__file__, module.__loader__ = spec, spec.origin, spec.loader
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    _begin()
except Exception as error:  # the program runs without us rather than not at all
    sys.stderr.write(f"everstep: this rank runs unobserved: {type(error).__name__}: {error}\n")
_hand_over()
