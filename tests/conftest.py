"""For all tests."""

import signal

from hypothesis import settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs the tests in the background without job control lets all of them, and what they start, ignore
    # Ctrl-C; the tests that press it would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests that decide whether a change lands say the same every time. `make search` looks where nobody has looked
# yet; what it finds becomes a test of its own.
settings.register_profile("search", derandomize=False)
settings.register_profile("same", derandomize=True)
settings.load_profile("same")
