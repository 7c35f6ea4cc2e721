"""Input files: raw tiles, their metadata and manifests, stitched images, measured PSFs."""
