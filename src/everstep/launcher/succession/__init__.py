"""A host that takes over the controller, and one that comes back."""
