"""Who is slower than the others, and than before: rounds, clocks, pace, and the vote on them."""
