"""Tasks of finding objects in images, with boxes and masks."""
