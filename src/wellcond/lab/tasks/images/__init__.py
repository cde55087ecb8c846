"""Tasks of image classification."""
