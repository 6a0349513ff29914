"""Traffic of jobs on each link: the prediction from their collectives, beside the counters of ports."""
