"""Sends probes and answers them. Sockets only: what losses mean is worked out in `locate`."""
