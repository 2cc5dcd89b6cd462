"""Messages without a broker: a bounded channel between threads, a bounded receiver of webhooks."""
