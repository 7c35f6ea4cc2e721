"""The documentation, and the scripts that make its site."""
