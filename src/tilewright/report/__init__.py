"""The report page: its parts and pictures."""
