"""Trainings that benchmarks start: each is a program by itself and imports nothing of the benchmarks."""
