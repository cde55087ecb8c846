"""The laboratory: train the arms of a comparison against each other, fairly."""
