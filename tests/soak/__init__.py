"""Real processes under real faults, and then the checker: ``make soak SECONDS=600 SEED=7``.

* :mod:`.__main__` is the command, :mod:`.run` one run from its start to its summary;
* :mod:`.workers` are the Python processes, :mod:`.sharing` those who share a subscription;
* :mod:`.driver` are the Spark ones, and :mod:`.tap` records what queries read;
* :mod:`.faults` draws the faults, :mod:`.processes` and :mod:`.disk` are what they happen to;
* :mod:`.ending` reads everything once more, :mod:`.summary` says what became of it all.

Nothing here is a test of its own: ``tests/testing/test_soak.py`` runs the short form.
"""
