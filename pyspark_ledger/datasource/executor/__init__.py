"""What runs on executors: it touches storage only, never ZooKeeper."""
