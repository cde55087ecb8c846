"""Tasks of the user's own: any data, loss and metric, from a file or from memory."""
