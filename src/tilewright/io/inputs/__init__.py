"""What the user gives: raw tiles, their metadata and manifests, stitched images, measured PSFs."""
