"""What is checked, and completed, before Ray starts."""
