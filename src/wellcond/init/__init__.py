"""Initialisation: schemes by name, the plan of what they write, and its audit."""
