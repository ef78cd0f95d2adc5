"""Scripted doubles of engine, learner and coordinator, for tests and the simulator."""
