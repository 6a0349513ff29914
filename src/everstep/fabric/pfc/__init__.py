"""Priority flow control: buffers that wait for each other in a circle, and ports that are paused without end."""
