"""The network between machines: its topology, its capacity, the placement of jobs, and its faults.

This room knows only the nodes, ranks and groups of a training job. The rest of Everstep uses only the conclusions of
this room about links. See docs/fabric.md and docs/adr/0022-fabric.md.
"""
