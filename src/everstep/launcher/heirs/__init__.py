"""Failover of the controller when its host is gone: which host may take over, with what, and how two never act."""
