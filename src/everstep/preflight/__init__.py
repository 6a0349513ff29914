"""Checks of a node before, during and after a run: what `everstep check` measures, and how it is judged.

`registry` lists the checks, `runner` runs them in a process of their own, `judge` decides (pure), `text` and `html`
show. `light.inspect` is for a node that is training: it starts no process. Nothing here imports torch in the caller's
process.
"""
