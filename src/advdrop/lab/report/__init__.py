"""Statistics, tables, figures, and the page that shows results. Imports no torch."""
