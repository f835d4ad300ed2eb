"""`expiremember-proxy events`: manage the notifications that scripts send when they remove expired members."""
