"""The papers' figures, drawn from the folders of monitors and comparisons."""
