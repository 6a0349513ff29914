"""Which rank the others wait for, from flight records alone: NCCL's and gloo's. Pure."""
