"""One incident, or all: what it was, why this was decided, who was examined, what the first error said."""
