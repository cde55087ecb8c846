"""Weights in files: safetensors read and written safely, and the state of a handle."""
