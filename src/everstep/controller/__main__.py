"""`python -m everstep.controller`.

First of all it is tied to its parent: to import the rest takes a busy machine seconds, and a launcher that is killed
meanwhile must not be outlived.
"""

import sys

from everstep.linux.parent import live_with_named

if not live_with_named(sys.argv):
    sys.exit(0)

from everstep.controller.main import main

sys.exit(main())
