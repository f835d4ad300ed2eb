"""`expiremember-proxy events`: manage expiry notifications. The scripts that remove expired members send them."""
