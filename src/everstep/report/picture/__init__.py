"""Picture of a run, as values: the same for the page, `everstep top`, reports and `--json`. Pure."""
