"""What there is to know about topics, subscriptions and producers, as rows of plain values, and the words in which
people give them: schemas, policies, records as JSON. The command line and the console show the same."""
