"""Where a job runs: the resources each rule asks for."""
