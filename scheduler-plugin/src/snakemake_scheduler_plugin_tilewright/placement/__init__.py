"""Which ready jobs start now and at which target, and what becomes of them then."""
