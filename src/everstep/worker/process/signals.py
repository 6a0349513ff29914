"""The code that handles signals in this process, and whether an exception came out of it. Standard library only, and of
it only what is built in: the program's own imports come later."""

import _signal  # type: ignore[import-not-found]


def handlers_code() -> set[object]:
    """Code of each handler that is installed: a function, a method, a partial, or an object that is called."""
    return {_code_of(_signal.getsignal(number)) for number in _signal.valid_signals()} - {None}


def has_passed(error: BaseException, handlers: set[object]) -> bool:
    """Whether one of `handlers` (`handlers_code()`) raised this, itself or by what it called."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def came_from_signal(error: BaseException) -> bool:
    """Whether a signal handler raised this while our code happened to run: then it is the program's, not ours."""
    return has_passed(error, handlers_code())


def _code_of(handler: object) -> object:
    function = getattr(handler, "func", handler)
    called = next((vars(each)["__call__"] for each in type(function).__mro__ if "__call__" in vars(each)), None)
    return getattr(function, "__code__", None) or getattr(called, "__code__", None)
