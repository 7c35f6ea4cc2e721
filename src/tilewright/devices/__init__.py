"""Which device a job computes on."""
