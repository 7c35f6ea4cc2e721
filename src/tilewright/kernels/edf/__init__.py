"""The in-focus plane of a z-stack (extended depth of field), and what is wrong with its planes."""
