"""Subscriptions: their durable position, revisions (PIP-269), owners and epochs (PIP-84), the consumer."""
