"""The commands below `everstep fabric`, one module each."""
