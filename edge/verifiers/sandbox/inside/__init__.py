"""What runs inside a sandbox. Sent in as code, so every module here imports only what the interpreter has built in or loads at once.

`wire` is the encoding between judge and program, `limits` sets resource limits and words why a program failed, `confine` takes rights
away (Linux without bubblewrap), `program` serves or runs the program under test, `judge` runs the tests. Nothing here may import the rest
of the package.
"""
