"""The one way out: the coordinator client, egress (redact, write down, send), calls whose outcome is unconfirmed, offline."""
