"""What is written down before anything is done: the journal's writer, and what it leaves out."""
