"""Moving from KeyDB: its RDB files are read, and the member deadlines in them imported into a server."""
