"""What is measured of each stage's results: one module for each stage, and what they share."""
