"""Messages to people about incidents: webhook, Slack, e-mail, a command; in a process of their own."""
