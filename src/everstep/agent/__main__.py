"""`python -m everstep.agent`: the agent of one node.

`-m` puts the user's current folder on the path; it goes first of all, so that a file there named like a module of the
standard library is not taken for it. Then it is tied to its parent: to import the rest takes a busy machine seconds.
Nothing of what is imported is garbage: it is not searched for any, neither meanwhile nor later.
"""

import gc
import os
import sys

if sys.path[:1] == [os.getcwd()] and not sys.flags.safe_path:  # noqa: PTH109 - pathlib is not to be imported yet
    del sys.path[0]

from everstep.linux.parent import live_with_named

if not live_with_named(sys.argv):
    sys.exit(0)

gc.disable()
from everstep.wire.lean_tls import import_aiohttp  # noqa: E402

import_aiohttp()
from everstep.agent.main import main  # noqa: E402
from everstep.agent.processes.holding import stand_in_line  # noqa: E402

gc.freeze()
gc.enable()
code = main(*stand_in_line(sys.argv[1:]))
for stream in (sys.stdout, sys.stderr):
    stream.flush()
# Threads of the senses may be in C++ at this moment, which the interpreter's own end would turn into an abort.
os._exit(code)
