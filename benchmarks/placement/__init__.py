"""Placement on a simulated Slurm that answers the commands, in virtual time."""
