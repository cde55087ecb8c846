"""Measurements of one attention layer, each as a record."""
