"""Spectral conditioning: corrections (maths), the weights they go to, weight decay around them, and the handle."""
