"""The local HTTP endpoint: OpenAI's API, the agent's own routes and the page.

`endpoint.build_app` puts it together, `server.serving` serves it; the protocols of `ports` describe who answers.
"""
