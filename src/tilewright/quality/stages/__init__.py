"""Quality of a stage's results: ``evaluate``, ``draw`` and ``CAPTION``, a module for each stage."""
