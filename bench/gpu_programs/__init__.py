"""Trainings that parts of bench/gpu.py start under everstep."""
