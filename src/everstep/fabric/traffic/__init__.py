"""What jobs send over each link, predicted from their collectives, beside what ports counted."""
