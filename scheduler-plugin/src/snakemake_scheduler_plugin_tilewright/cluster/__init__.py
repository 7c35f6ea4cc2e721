"""What a Slurm cluster offers one person: accounts, limits, live use, partitions and nodes."""
