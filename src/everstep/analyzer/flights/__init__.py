"""Search for the rank that the others wait for, from flight records alone: NCCL's and gloo's. Pure."""
