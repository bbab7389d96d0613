"""The log itself: a topic, its index, places in it, sealing, planning reads, reading."""
