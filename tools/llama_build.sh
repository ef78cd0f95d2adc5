#!/usr/bin/env bash
# Sees to it that the installed llama.cpp computes on this processor; its argument is the environment's Python.
#
# It is compiled for the processor at hand, or comes from pip's cache, compiled for another one. What a compiler makes of AMX may also fault
# at its first instruction. So a prompt of the bundled model is decoded in a process of its own, and where that dies llama.cpp is
# built again: without AMX, and if that dies too, for any x86-64 processor with AVX2. The first build leaves AMX out already where the
# compiler is known for it, see edge/core/llama_build.py, which has the arguments of every build.
set -euo pipefail
python=$1
version=$(sed -n 's/^llama[_-]cpp[_-]python==//p' constraints.txt)

decodes() {
  "$python" -c 'from edge.inference.llamacpp import decode_some; decode_some("edge/models/files/nano-edge.gguf")' 2>/dev/null
}

rebuild() {
  echo "== building llama.cpp again: $1 (about 3 minutes on 2 cores)"
  "$python" -m pip --disable-pip-version-check cache remove --quiet llama_cpp_python >/dev/null 2>&1 || true
  CMAKE_ARGS=$2 "$python" -m pip --disable-pip-version-check install --quiet --force-reinstall --no-deps \
    --no-binary llama-cpp-python "llama-cpp-python==$version"
}

arguments() {
  "$python" -m edge.core.llama_build "$1"
}

decodes && exit 0
rebuild "what is installed does not run on this processor" "$(arguments without-amx)"
decodes && exit 0
rebuild "without what is special to this processor" "$(arguments for-any)"
decodes && exit 0
echo "llama.cpp does not run on this processor; see https://llama-cpp-python.readthedocs.io for other builds" >&2
exit 1
