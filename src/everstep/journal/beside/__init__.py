"""Beside the journal in a run's directory: who may write, values and keys, the newest progress, the successor."""
