"""Other launchers: how they are installed, started beside everstep, and timed."""
