"""Everstep keeps large PyTorch training jobs stepping."""
