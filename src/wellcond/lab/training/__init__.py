"""One training run: batches, optimizer, evaluation, checkpoints."""
