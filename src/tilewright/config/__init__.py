"""The configuration: keys, tables, where every file lies, and checks before any work."""
