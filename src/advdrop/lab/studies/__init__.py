"""Studies: the paper's figures and its theorem."""
