"""The parts of bench/gpu.py, one file and one process each. `gpu_running.parts` lists them."""
