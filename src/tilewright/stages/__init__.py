"""One stage of the workflow per module: stream data through kernels, report progress.

The sides of chunks and tiles are here: jobs are planned with them, so nothing is imported.
"""

#: Side of a chunk of the images and mosaics that are stored, and of a tile that is deconvolved or
#: projected at once: of 20 planes in float32 one takes 84 MB. With its halo the in-focus plane of
#: one is computed on 1.5 times its pixels, on 2.1 times with 512 px.
CHUNK_PX = TILE_PX = 1024
#: Margin of a tile that is deconvolved: with 32 px seams of 0.3 % show, with 64 px none.
HALO_PX = 64
