"""`python -m everstep.controller`.

First of all it is tied to its parent: to import the rest takes a busy machine seconds, and a launcher that is killed
meanwhile must not be outlived. Nothing of what is imported is garbage: it is not searched for any.
"""

import gc
import sys

from everstep.linux.parent import live_with_named

if not live_with_named(sys.argv):
    sys.exit(0)

gc.disable()
from everstep.wire.lean_tls import import_aiohttp  # noqa: E402

import_aiohttp()
from everstep.controller.main import main  # noqa: E402

gc.freeze()
gc.enable()
sys.exit(main())
