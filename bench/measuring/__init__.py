"""What every benchmark measures with: processes started and ended, logs read, medians, tables, turns."""
