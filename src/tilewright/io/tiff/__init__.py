"""TIFF files as such: headers of pages, metadata, and whether pixels can be counts."""
