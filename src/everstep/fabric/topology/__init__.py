"""The one value that every reader makes and every other part of the room works on."""
