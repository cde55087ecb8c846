"""Tensors, files, text and terminals: nothing here knows of attention."""
