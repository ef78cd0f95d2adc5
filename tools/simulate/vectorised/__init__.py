"""The fleet as arrays: a million devices and a day in a minute, with the figures of the exact simulation."""
