"""The one way out: from a step or a question to gRPC.

`GroupCalls` (a step, an evaluation) and `edge.answering.ask_cloud` (a question) decide what is asked. `WatchedClient` notices whether the
coordinator is there, `EgressClient` redacts, writes down and sends, `edge.rpc.grpc_client` retries with the same key. Where a reply is
lost, `UnconfirmedCalls` finds out what became of the call. Each call is a coroutine of its own from end to end; only a daily limit in
money makes a call wait for another.
"""
