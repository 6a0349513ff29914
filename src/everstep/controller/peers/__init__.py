"""Who may talk to the controller, how much, and what is believed of it."""
