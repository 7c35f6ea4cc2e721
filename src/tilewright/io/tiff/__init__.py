"""TIFF files: headers of pages, OME-XML and other metadata, and accepted pixel types."""
