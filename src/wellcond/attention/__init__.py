"""Attention layers of any model: found, seen per head, replayed and verified."""
