"""Networks that are not there yet, and jobs that are not placed yet."""
