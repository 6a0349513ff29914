"""The network between machines: what it is, what it could carry, where jobs belong in it, and what is broken.

It knows nothing of training beyond nodes, ranks and groups. The rest of Everstep knows nothing of links beyond what
this room concludes. See docs/fabric.md and docs/adr/0022-fabric.md.
"""
