"""Ways to keep W + C: folded into the parameter, or computed whenever it is read."""
