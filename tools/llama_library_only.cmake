# Included by llama-cpp-python's build: of llama.cpp the library alone is compiled. Its command-line helpers ("common") are most of the rest;
# llama-cpp-python puts LLAMA_BUILD_COMMON=ON into the cache, and a variable goes before the cache.
set(LLAMA_BUILD_COMMON OFF)
