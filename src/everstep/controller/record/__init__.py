"""The journal's writer: what is recorded before anything is done, and what is left out."""
