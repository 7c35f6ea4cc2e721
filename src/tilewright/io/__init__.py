"""Tiles in; OME-Zarr, OME-TIFF and tables out."""
