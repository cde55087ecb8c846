"""Every table and figure of the two papers as recipes of the laboratory, with what was published."""
