"""What jobs, runs and commands share: the wrapper of a job, devices of this machine, files."""
