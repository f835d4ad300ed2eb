"""One client's stream of requests, without I/O: what goes as it came, what is replaced, and what has to wait."""
