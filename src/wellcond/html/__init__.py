"""HTML pages from JSON alone: no torch, no laboratory."""
