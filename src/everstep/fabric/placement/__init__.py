"""Which hosts a job gets and in which order its nodes take them, so that the fullest link is as empty as possible."""
