# Included by llama-cpp-python's build: of llama.cpp the library alone is compiled. Its command-line helpers ("common") are most of the rest;
# llama-cpp-python puts LLAMA_BUILD_COMMON=ON into the cache, and a variable goes before the cache.
set(LLAMA_BUILD_COMMON OFF)
# libllama is bookkeeping around ggml's products, which keep -O3: at -O1 it compiles in two thirds of the time and rollouts are as fast.
cmake_language(DEFER CALL target_compile_options llama PRIVATE -O1)
