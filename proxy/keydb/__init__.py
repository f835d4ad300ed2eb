"""Move from KeyDB: read its RDB files, and import the member deadlines in them into a server."""
