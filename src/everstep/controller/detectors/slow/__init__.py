"""Detection of ranks slower than the others, and slower than before: rounds, clocks, pace, and the vote on them."""
