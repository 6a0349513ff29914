"""Signals of the kernel: its log, out-of-memory kills, memory errors."""
