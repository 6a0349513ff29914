"""Which lines of much text are worth being taken apart."""
