// check_hash.c - what hash.h promises: every changed byte and every other size changes the result. Prints GB/s.
#include "hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LONGEST = 200, ROUNDS = 20 };
static const size_t speed_size = (size_t) 16 << 20;

static unsigned long failures;

static void expect(int ok, const char * what, size_t a, size_t b) {
    if (!ok) {
        fprintf(stderr, "%s: %zu, %zu\n", what, a, b);
        failures++;
    }
}

static void check_size(size_t size) {
    unsigned char bytes[LONGEST + 1];
    for (size_t i = 0; i < size; i++) {
        bytes[i] = (unsigned char) (i * 37 + 11);
    }
    uint64_t hash = k3_hash64(0, bytes, size);
    expect(hash == k3_hash64(0, bytes, size), "not the same twice", size, 0);
    expect(hash != k3_hash64(1, bytes, size), "the seed has no effect", size, 0);
    for (size_t i = 0; i < size; i++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            bytes[i] ^= (unsigned char) (1u << bit);
            expect(hash != k3_hash64(0, bytes, size), "a changed bit has no effect", size, i * 8 + bit);
            bytes[i] ^= (unsigned char) (1u << bit);
        }
    }
}

// Zeros of different lengths: only the size tells them apart. Same bytes at another address: the same result.
static void check_zeros_and_addresses(void) {
    unsigned char zeros[LONGEST + 8] = {0};
    for (size_t a = 0; a <= LONGEST; a++) {
        for (size_t b = 0; b < a; b++) {
            expect(k3_hash64(0, zeros, a) != k3_hash64(0, zeros, b), "the size has no effect", a, b);
        }
        expect(k3_hash64(0, zeros, a) == k3_hash64(0, zeros + 1, a), "the address has an effect", a, 0);
    }
}

// Exchanging two words of one lane or of two lanes is no single change; it has to show all the same.
static void check_exchanged_words(void) {
    uint64_t words[12];
    for (size_t i = 0; i < 12; i++) {
        words[i] = i + 1;
    }
    uint64_t hash = k3_hash64(0, words, sizeof(words));
    for (size_t a = 0; a < 12; a++) {
        for (size_t b = 0; b < a; b++) {
            uint64_t other[12];
            memcpy(other, words, sizeof(words));
            other[a] = words[b];
            other[b] = words[a];
            expect(hash != k3_hash64(0, other, sizeof(other)), "exchanged words have no effect", a, b);
        }
    }
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + (double) t.tv_nsec / 1e9;
}

static void print_speed(void) {
    unsigned char * bytes = calloc(1, speed_size);
    uint64_t hash         = 0;
    double best           = 1e9;
    for (int i = 0; bytes && i < ROUNDS; i++) {
        double start = now_s();
        hash         = k3_hash64(hash, bytes, speed_size);
        double taken = now_s() - start;
        best         = taken < best ? taken : best;
    }
    printf("%.2f GB/s (%016llx)\n", (double) speed_size / best / 1e9, (unsigned long long) hash);
    free(bytes);
}

int main(void) {
    for (size_t size = 0; size <= LONGEST; size++) {
        check_size(size);
    }
    check_zeros_and_addresses();
    check_exchanged_words();
    print_speed();
    return failures > 0;
}
