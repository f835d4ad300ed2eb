"""The proxy's knowledge of Redis commands: their effects on members and deadlines, and which arguments are keys."""
