"""What is run: configurations, the recipes that fill them in, and the methods they name."""
