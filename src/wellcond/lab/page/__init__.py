"""The HTML page of a comparison: from its folder to the JSON that is shown."""
