"""Matplotlib pictures of results."""
