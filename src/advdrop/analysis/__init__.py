"""Examine a trained network: which units it depends on, and what the mask search does with an example."""
