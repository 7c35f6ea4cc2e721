"""Sides of chunks and tiles; jobs are planned with them, so nothing is imported here."""

#: Side of a chunk of the images and mosaics that are stored, and of a tile that is deconvolved at
#: once: of 20 planes in float32 one takes 84 MB.
CHUNK_PX = TILE_PX = 1024
#: Margin of a tile that is deconvolved: with 32 px seams of 0.3 % show, with 64 px none.
HALO_PX = 64
