"""The report page: its parts, pictures, and the section on devices."""
