"""Everything that runs inside Redis: names of the proxy's own keys, Lua (one file per operation), encoding of calls."""
