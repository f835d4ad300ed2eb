"""The upstream server: its address, and connections to it."""
