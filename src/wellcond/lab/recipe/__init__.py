"""Recipes: comparisons written as TOML files, checked before anything runs."""
