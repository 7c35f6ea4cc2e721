"""Quality control: what is measured of each stage, verdicts, and the tables of a run."""
