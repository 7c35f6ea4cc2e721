"""What the workflow writes: mosaics, images, positions, transforms."""
