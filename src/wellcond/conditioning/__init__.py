"""Conditioning: keep the weights of attention well conditioned while they are trained."""
