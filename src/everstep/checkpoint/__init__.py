"""Snapshots and checkpoints: the memory they live in, their form, their copies on peers, their copies on disk.

    arena       the memory of one rank's snapshots; standard library only, read by agents
    packing     state dicts to the bytes of a snapshot and back; imports torch
    transport/  snapshots between nodes: a server per agent, push and fetch
    persist/    the tier on disk or in object storage: written, verified, read, exported

`core` decides where copies go and which step is restored.
"""
