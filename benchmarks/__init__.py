"""Measurements behind `make bench`: throughput, latency, memory and the cost of commits.

    python -m benchmarks.run                                  everything
    python -m benchmarks.run --only source,sink --rounds 3    throughput against the ceiling and Parquet
    python -m benchmarks.run --only tiny                      latency of tiny micro-batches
    python -m benchmarks.run --only memory                    a worker with a partition of 1 GB
    python -m benchmarks.run --only commits --commits 20000   cost of a commit as the topic grows

What is compared, and why it is fair: every contestant runs in the same session, on as many rows in
as many files, in every order; the disk is synced and the JVM's garbage collected before
every run. Wall time is that of the whole query, its start included; the batch's own time (Spark's
addBatch) stands beside it, since starting a Python source costs about a second whatever it reads.
Parquet's sink does not sync its files, the ledger's does.
"""
