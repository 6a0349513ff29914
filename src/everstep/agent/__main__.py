"""`python -m everstep.agent`: the agent of one node."""

import sys

from everstep.agent.main import main

sys.exit(main())
