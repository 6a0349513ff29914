"""NCCL's own view of its collectives: a profiler plug-in for ranks, and the reader of its records."""
