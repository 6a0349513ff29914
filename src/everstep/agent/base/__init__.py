"""What every other room of the agent needs: memory, boards, channels, children, environments."""
