"""What the proxy counts: one table of metrics, each a plain number that its parts add to."""
