"""What Slurm says: accounts, limits and who uses them. Knows neither pixels nor jobs of ours."""
