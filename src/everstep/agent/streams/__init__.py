"""Streams that ranks read and write: their files, their terminals, and how large they may get."""
