"""`expiremember-proxy events`: who wants to be told of members that expire. The scripts that remove them tell."""
