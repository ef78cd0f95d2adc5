"""The composition root of the agent: the only place that names concrete classes. Heavy imports happen inside the builders."""
