"""The upstream server: its address, and what it takes to connect to it."""
