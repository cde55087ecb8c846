"""Hugging Face transformers: its attention classes, recognised by origin and never imported."""
