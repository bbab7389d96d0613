"""A real ZooKeeper on this machine, for development and tests."""
