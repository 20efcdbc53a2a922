"""Why it works: the paper's figures and its theorem, measured."""
