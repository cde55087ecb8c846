"""Models by name and example inputs for them, for the command line."""
