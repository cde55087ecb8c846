"""From a real model to the numbers of the theory: read off its weights, and measured on a batch."""
