"""Simulated histories: writers, readers, subscribers, compactors and gc as processes that take turns in an order from a
seed, over a store and a disk in memory that fail in every way that is known to us.

``python -m tests.simulation --seed 7`` plays one history, and ``--seeds 10000`` as many, from that seed on.
"""
