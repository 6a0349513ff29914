"""Programs that run another launcher up to the moment at which it would start processes, and say what it would start.

They run with the ranks' Python: `python -m everstep.launcher.foreign.answers.accelerate FD ARGUMENTS`.
"""
