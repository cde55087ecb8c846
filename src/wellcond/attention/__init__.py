"""What an attention layer is, in any model."""
