"""From a process that begins to the user's program with our runtime in it."""
