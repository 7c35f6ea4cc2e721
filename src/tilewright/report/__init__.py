"""Quality numbers, verdicts, figures and the HTML report."""
