"""Attention found by what a forward pass computes: a tape of its operations, and what can be read off it."""
