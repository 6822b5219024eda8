"""Reports and comparisons as text, page and picture."""
