"""The page of the runs on a cluster, from the ledger of their placement."""
