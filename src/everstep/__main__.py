"""`python -m everstep`: the same as the command `everstep`."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the user's directory: `secrets.py` there is theirs, not the one that we mean

from everstep.cli.main import main

sys.exit(main())
