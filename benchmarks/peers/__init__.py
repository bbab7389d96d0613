"""`make bench-peers`: the ledger beside what people would pick instead: Spark's Kafka source and sink, Delta,
Parquet.

    make bench-peers                                    everything, an hour or more
    make bench-peers ONLY=tiny,writers ROUNDS=3         some of it
    make bench-peers SMALL=1                            next to nothing of each workload, to see that it runs

It has an environment of its own, `.venv-peers`, with the newest PySpark that all peers are built for; `.peers` holds
their jars and the results. Each workload is a module of `benchmarks.peers.work`. Everything is done in rounds, each
round in another order after a warm-up, and what a peer has stored is removed before the next one begins.
docs/benchmarks.md has the tables, which `python -m benchmarks.peers.report` writes from the results, and says what
each peer promises when it has written.
"""
