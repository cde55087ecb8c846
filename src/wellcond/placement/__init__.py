"""Placement of a real model on its trainability diagram: from its weights, and from a batch."""
