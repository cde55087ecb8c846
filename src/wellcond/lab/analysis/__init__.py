"""Statistics of finished runs, and the words that they allow."""
