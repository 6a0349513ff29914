"""Who is slow, from steps, arrivals and collectives."""
