"""One stage of the workflow per module: stream data through kernels, report progress."""
