"""The command line: arguments to public functions."""
