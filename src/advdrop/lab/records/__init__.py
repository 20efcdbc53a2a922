"""Records: one small JSON file for each finished run or measurement."""
