"""Commands about networks and jobs that do not exist yet: plan, simulate and place."""
