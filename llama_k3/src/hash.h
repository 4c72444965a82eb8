// hash.h - 64-bit checksum of bytes, for the model's digest and for saved sequences. Not cryptographic.
#ifndef K3_HASH_H
#define K3_HASH_H

#include <stddef.h>
#include <stdint.h>

// Every 8-byte word enters through a bijective step, so that changing any one word (or the size) changes the result.
// Chain several pieces by passing the last result as the seed.
uint64_t k3_hash64(uint64_t seed, const void * data, size_t size);

#endif
