"""A namespace in a browser: pages, and an API with the same operations. Needs the extra ``console``.

It shows what is in ZooKeeper and storage, and stores nothing. Who only looks cannot change anything; who may change
something signs in, sees before what would happen, and leaves a line in the audit log.
"""
