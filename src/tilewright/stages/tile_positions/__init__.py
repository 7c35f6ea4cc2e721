"""Where each tile of a cycle lies."""
