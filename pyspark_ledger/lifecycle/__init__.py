"""What keeps a topic healthy over the years: garbage collection."""
