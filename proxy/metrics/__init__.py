"""The proxy's metrics: a table of plain numbers that other modules update."""
