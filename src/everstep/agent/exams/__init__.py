"""Examinations on this node, while the job stands still: the orders, and the processes that carry them out."""
