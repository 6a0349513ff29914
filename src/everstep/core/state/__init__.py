"""The brain's knowledge: the state, a turn that changes it, and the values they are made of."""
