"""What the proxy knows of Redis commands: what each does to members and their deadlines, and where its keys stand."""
