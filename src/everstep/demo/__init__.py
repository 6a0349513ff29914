"""Content of `everstep demo`: two real trainings, one undisturbed, one with faults, and the comparison of the two."""
