"""The version of the package, in one place; hatchling reads it from here."""

__version__ = "0.1.0"
