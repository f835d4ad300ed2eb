"""What runs inside Redis: names of the proxy's own keys, Lua (one file an operation), and how a call is encoded."""
