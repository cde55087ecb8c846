"""Tasks on text: language modelling, masked tokens, classification."""
