"""What must survive a crash: one SQLite file a folder, its schema, rows, reads and writes, and the typed events."""
