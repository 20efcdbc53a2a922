"""The laboratory: data, networks, training runs, records, reports and the command line."""
