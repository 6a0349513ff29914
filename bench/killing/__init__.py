"""Kills at planned moments: the plan, the strike, what was hurt, the report."""
