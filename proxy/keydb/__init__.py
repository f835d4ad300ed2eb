"""What moving from KeyDB takes: its RDB files read, and the deadlines of members in them brought into a server."""
