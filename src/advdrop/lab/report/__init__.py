"""What runs came to: records, statistics, and the page that shows them. Imports no torch."""
