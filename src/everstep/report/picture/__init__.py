"""What a run looks like, as values: the same for the page, `everstep top`, reports and `--json`. Pure."""
