"""Diagnosis of a real model on a real batch, once or through training."""
