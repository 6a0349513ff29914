"""Examinations of nodes while the job stands still: real programs, one process per rank, started by an agent.

`python -m everstep.preflight.examination REQUEST` takes part in one of them and reports what it saw: in a process of an
agent to the agent, and on standard output. `layout` and `compare` are pure. Which result blames which node:
docs/check.md.
"""
