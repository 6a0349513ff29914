"""The same program under torchrun and everstep: what it can see, random programs, what differs."""
