"""One incident, or all: what it was, why this was decided, which nodes were examined, what the first error was."""
