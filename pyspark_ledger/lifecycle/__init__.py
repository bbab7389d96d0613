"""What keeps a topic healthy over the years: garbage collection, and the upgrade of a namespace to a new format."""
