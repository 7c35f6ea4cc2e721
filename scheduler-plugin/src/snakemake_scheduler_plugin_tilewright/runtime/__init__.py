"""What a run and its jobs share: files, causes of failures, Snakemake's internals."""
