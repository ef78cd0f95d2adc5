"""What this device may spend and has spent: the budget dial, the quota of each task, the daily budget of learning."""
