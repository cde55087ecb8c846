"""Signal propagation at initialisation: what attention, MLP and normalisation do to the similarity of tokens."""
