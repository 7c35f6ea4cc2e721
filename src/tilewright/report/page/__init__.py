"""The report page, its parts, and the tables beside it."""
