"""The report page and its parts."""
