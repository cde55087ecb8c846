"""Invented data in the formats of published sets, to try a recipe before the real data are fetched."""
