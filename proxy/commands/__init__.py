"""What the proxy knows about Redis commands: what each does to members and deadlines, and which arguments are keys."""
