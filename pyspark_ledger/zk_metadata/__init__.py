"""Everything that knows ZooKeeper: node paths, protobuf records, sessions, transactions."""
