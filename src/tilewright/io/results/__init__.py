"""Files of results: mosaics, images, positions, transforms."""
