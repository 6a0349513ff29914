"""Modules that every other room of the rank needs: the board, our own faults, which module is whose, signals."""
