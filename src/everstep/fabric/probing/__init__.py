"""Sends probes and answers them. Only sockets are handled here; `locate` judges the losses."""
