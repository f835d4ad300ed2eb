"""What the proxy does in Redis by itself: removes members on time, and follows which keys have deadlines."""
