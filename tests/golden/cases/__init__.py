"""The cases, by area."""
