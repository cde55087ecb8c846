"""What scale does to attention: sharpness, branch gain and products measured, factors balanced, a start calibrated."""
