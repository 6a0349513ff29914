"""What one process does: what it waits for, its stack, its device, its communication."""
