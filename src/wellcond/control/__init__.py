"""Control of attention while a model trains: sharpness, spectrum and coordinates of heads kept within bands."""
