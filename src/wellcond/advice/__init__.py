"""Which initialisation for this model, on this data: measured, predicted, tried, and told with its uncertainty."""
