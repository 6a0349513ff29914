"""Where ranks of one generation find each other: the stores, and the process that they live in."""
