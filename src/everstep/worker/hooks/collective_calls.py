"""How long the program's own calls of collectives took: two looks at the clock around each. Gloo's flight record says
when an operation began, and never when it ended.

torch wraps these functions in a logger of their errors, which holds the function itself in a cell; ours takes its place
in that cell. So every name and identity that the program, its compiler and torch know stays as it was, and our frame is
cut out of the traceback of an error. Where torch looks different, nothing is put anywhere, and times are unknown.
Not seen: DistributedDataParallel's and compiled collectives (C++), and calls that return before they are done.
"""

import dis
import threading
import time
from collections.abc import Callable
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from everstep.worker.link.calls import noted

FUNCTIONS = (
    "broadcast", "all_reduce", "reduce", "all_gather", "all_gather_single", "all_gather_into_tensor", "gather",
    "scatter", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "all_to_all_single", "all_to_all",
    "barrier",
)  # fmt: skip


def hook(module: ModuleType) -> None:
    """`module`: torch.distributed.distributed_c10d, loaded."""
    for name in FUNCTIONS:
        function = getattr(module, name, None)
        cell = _cell_of(function)
        if (
            cell is not None
            and isinstance(function, FunctionType)
            and not hasattr(cell.cell_contents, "_everstep_timed")
        ):
            cell.cell_contents = _in_place_of(function, _timed(cell.cell_contents))


def _cell_of(function: object) -> CellType | None:
    """Where torch's wrapper keeps the function that it wraps; None where it is not made as we know it."""
    if not isinstance(function, FunctionType) or function.__code__.co_freevars != ("func",):
        return None
    (cell,) = function.__closure__ or (None,)
    inner = getattr(function, "__wrapped__", None)
    return cell if cell is not None and inner is not None and cell.cell_contents is inner else None


def _timed(function: Callable[..., Any]) -> FunctionType:
    now, thread, append = time.time_ns, threading.get_ident, noted.append

    def timed(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever torch's takes
        begin = now()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            # Raised again, it gets no second entry for this frame; the first one is taken out.
            if error.__traceback__ is not None:
                error.__traceback__ = error.__traceback__.tb_next
            raise
        if result is None:  # else it may still be under way
            append((thread(), begin, now()))
        return result

    assert isinstance(timed, FunctionType)
    return timed


def _in_place_of(wrapper: FunctionType, timed: FunctionType) -> FunctionType:
    """`timed`, placed in the module, file and line in which torch's wrapper makes this call, so that whatever looks at
    frames (warnings and their filters, stacks of hangs) sees no difference."""
    code = timed.__code__
    shift = _line_of("func", wrapper.__code__) - _line_of("function", code)
    code = code.replace(
        co_filename=wrapper.__code__.co_filename, co_name="wrapper", co_firstlineno=code.co_firstlineno + shift
    )
    placed = FunctionType(code, wrapper.__globals__, "wrapper", None, timed.__closure__)
    placed._everstep_timed = True  # type: ignore[attr-defined]
    return placed


def _line_of(variable: str, code: CodeType) -> int:
    """The first line that takes the value of a variable of an outer function."""
    line = code.co_firstlineno
    for each in dis.get_instructions(code):
        line = each.starts_line or line
        if each.opname == "LOAD_DEREF" and each.argval == variable:
            return line
    return line
