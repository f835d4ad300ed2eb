"""What the proxy counts: a table of metrics, each a plain number that other modules update."""
