"""Faults by kind and by row of the incident table: the matrix, the runs, the report."""
