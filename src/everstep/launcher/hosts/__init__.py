"""A run over several hosts: the one that owns the endpoint has the controller, the others join it."""
