"""Suites: the tables of the paper as data."""
