"""Probes of one process: its wait, its stack, its device, its communication."""
