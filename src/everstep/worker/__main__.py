"""`python -m everstep.worker`: a fresh worker. The agent starts it; it is of no use by hand."""

from everstep.worker.start.main import main

main()
