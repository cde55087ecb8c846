"""The laboratory: train schemes against each other, fairly."""
