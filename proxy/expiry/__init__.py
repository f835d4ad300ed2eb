"""The proxy's own work in Redis: it removes members on time, and tracks which keys have deadlines."""
