"""Pauses of lossless Ethernet: cycles of buffers that wait for each other, and storms."""
