"""The rule ``tile_positions``: where each tile of a cycle lies."""
