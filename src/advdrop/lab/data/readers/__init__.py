"""From files to examples, one module for each format.

Every function is pure, trusts nothing in the file, and allocates no more than the file really holds. A file that cannot
be used raises a `DataError` that names it.
"""
