"""What the kernel says: its log, lack of memory, errors of memory."""
