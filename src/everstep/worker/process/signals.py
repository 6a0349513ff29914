"""Is an exception the program's own, although our code was running when it came? Standard library only."""

import signal


def came_from_signal(error: BaseException) -> bool:
    """Whether a signal handler raised this while our code happened to run: then it is the program's, not ours."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False
