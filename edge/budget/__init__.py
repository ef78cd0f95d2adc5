"""What this device may spend and has spent: the dial, quotas, the daily budget of learning."""
