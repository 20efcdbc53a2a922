"""One training step of any network."""
