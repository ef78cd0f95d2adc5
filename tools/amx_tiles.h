/* Included before every file of llama.cpp where the compiler's own header is wrong (edge/core/llama_build.py): GCC 12 says that the
   instruction which loads the shape of tiles reads a pointer's 8 bytes, so that the other 56 may be optimised away. It reads 64. */
#pragma once
#include <immintrin.h>
#ifdef __AMX_TILE__
#define _tile_loadconfig(shape) __asm__ volatile("ldtilecfg\t%X0" ::"m"(*(const char(*)[64])(shape)))
#endif
