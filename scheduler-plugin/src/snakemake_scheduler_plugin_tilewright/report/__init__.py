"""The page of a run on a cluster, from the ledger of its placement."""
