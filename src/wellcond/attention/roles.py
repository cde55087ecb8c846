"""Roles of an attention layer's four projections, and the symbols of their weights; imports nothing.

A head computes `softmax(s · (x W_Q)(x W_K)ᵀ) (x W_V) W_O`: query and key give the logits, values are averaged, and the
output projection writes the average to the residual stream.
"""

QKV = ("query", "key", "value")
ROLES = (*QKV, "output")
LETTERS = {role[0]: role for role in ROLES}  # as users write them: "qk", "vo"
SYMBOLS = {role: f"W_{letter.upper()}" for letter, role in LETTERS.items()}
