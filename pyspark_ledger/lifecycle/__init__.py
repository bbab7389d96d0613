"""What keeps topics healthy over the years: retention, garbage collection, rewriting small files, what becomes of idle
subscriptions, and maintenance that does all of it; also repair after a rollback, and the upgrade of a namespace."""
