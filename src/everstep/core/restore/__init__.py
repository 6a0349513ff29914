"""What ranks go on from: which snapshots there are, which are trusted, where copies lie."""
