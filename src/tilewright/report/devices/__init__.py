"""The report's section on devices."""
