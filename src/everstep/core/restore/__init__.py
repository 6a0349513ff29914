"""The state that ranks resume from: which snapshots there are, which are trusted, where copies lie."""
