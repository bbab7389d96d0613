"""What Prometheus may know about a namespace. Needs the extra ``metrics``."""
