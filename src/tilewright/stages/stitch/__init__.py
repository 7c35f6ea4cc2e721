"""The rules ``stitch`` and ``stitched_plane``: mosaics from tiles, planes from stitched images."""
