"""Priority flow control: buffers that wait for each other in a cycle, and ports that stay paused."""
