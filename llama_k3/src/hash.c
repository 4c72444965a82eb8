// hash.c - the checksum: four independent lanes over stripes of 32 bytes, so that the multiplications overlap.
#include "hash.h"

#include <string.h>

enum { LANES = 4, WORD = 8, STRIPE = LANES * WORD };

// Odd, hence a bijective factor modulo 2^64.
static const uint64_t multiplier = 0x9E3779B97F4A7C15u;

// Bijective in `h` for a fixed word and in `word` for a fixed h: xor, rotation and odd factor all are.
static uint64_t step(uint64_t h, uint64_t word) {
    h ^= word;
    h = (h << 29) | (h >> 35);
    return h * multiplier;
}

static uint64_t load_word(const unsigned char * bytes) {
    uint64_t word;
    memcpy(&word, bytes, WORD);
    return word;
}

// Spreads every input bit over the whole result; bijective.
static uint64_t finish(uint64_t h) {
    h ^= h >> 32;
    h *= multiplier;
    h ^= h >> 29;
    h *= multiplier;
    return h ^ (h >> 32);
}

uint64_t k3_hash64(uint64_t seed, const void * data, size_t size) {
    const unsigned char * bytes = data;
    uint64_t lane[LANES];
    for (uint64_t i = 0; i < LANES; i++) {
        lane[i] = step(seed, i + 1);
    }
    size_t left = size;
    for (; left >= STRIPE; left -= STRIPE, bytes += STRIPE) {
        for (size_t i = 0; i < LANES; i++) {
            lane[i] = step(lane[i], load_word(bytes + i * WORD));
        }
    }
    uint64_t h = step(seed, size);
    for (size_t i = 0; i < LANES; i++) {
        h = step(h, lane[i]);
    }
    for (; left >= WORD; left -= WORD, bytes += WORD) {
        h = step(h, load_word(bytes));
    }
    if (left > 0) {
        unsigned char tail[WORD] = {0};
        memcpy(tail, bytes, left);
        h = step(h, load_word(tail));
    }
    return finish(h);
}
