"""Engines that make the runs of a comparison: here, side by side, or on a Ray cluster."""
