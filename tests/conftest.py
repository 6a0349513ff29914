"""For all tests."""

import gc
import signal

from hypothesis import settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs the tests in the background without job control lets all of them, and what they start, ignore
    # Ctrl-C; the tests that press it would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests that decide whether a change lands say the same every time. `make search` looks where nobody has looked
# yet; what it finds becomes a test of its own. How long an example takes is the machine's business.
settings.register_profile("search", derandomize=False, deadline=None)
settings.register_profile("same", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("same")

# Nothing of what is imported and collected is garbage. Two million objects would be searched for it again and again, in
# this process and in each that a test forks.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
