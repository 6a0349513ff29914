"""What follows a controller of a real run from the inside."""
