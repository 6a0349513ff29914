"""The verbs below `everstep fabric`, one module each."""
