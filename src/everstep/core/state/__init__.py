"""What the brain knows: the state, a turn that changes it, and the values they are made of."""
