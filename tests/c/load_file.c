// load_file.c - loads files through the public interface, for tests/test_bad_files.py.
//
//   load_file FILE...
//       one line for each: file, status name, message, milliseconds, peak KiB
//   load_file --fuzz SEED COUNT HEADER FILE TMP
//       loads COUNT broken copies of FILE, whose first HEADER bytes get most of the damage, written to TMP one after
//       the other; one line for each status met: status name, times
#include "llama_k3.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MESSAGE_SIZE = 1024, MAX_STATUS = 100, SPECIAL_VALUES = 9 };

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec * 1e3 + (double) t.tv_nsec / 1e6;
}

// Sets the peak back to the present size, so that each file's own peak is seen (Linux).
static void reset_peak(void) {
    FILE * file = fopen("/proc/self/clear_refs", "w");
    if (file) {
        fputs("5", file);
        fclose(file);
    }
}

static long peak_kib(void) {
    FILE * file = fopen("/proc/self/status", "r");
    char line[256];
    long peak = -1;
    while (file && fgets(line, sizeof(line), file)) {
        if (sscanf(line, "VmHWM: %ld", &peak) == 1) {
            break;
        }
    }
    if (file) {
        fclose(file);
    }
    return peak;
}

// Every question that a caller may ask of a loaded model, so that the sanitizers see the answers being read.
static unsigned long ask_everything(const llama_k3_model * model) {
    llama_k3_model_info info;
    llama_k3_model_get_info(model, &info);
    unsigned long sum = (unsigned long) info.digest;
    for (int32_t layer = -1; layer <= info.n_layer; layer++) {
        sum += (unsigned long) llama_k3_model_layer_kind(model, layer);
    }
    for (uint64_t i = 0; i < llama_k3_model_meta_count(model); i++) {
        llama_k3_meta meta;
        llama_k3_meta_value value;
        llama_k3_model_meta_at(model, i, &meta);
        for (uint64_t k = 0; llama_k3_model_meta_value_at(model, i, k, &value) == LLAMA_K3_OK; k++) {
            sum += (unsigned long) value.i + (value.s ? strlen(value.s) : 0);
        }
    }
    return sum;
}

static int load(const char * path, char * message) {
    static volatile unsigned long sink;
    llama_k3_model * model = NULL;
    int status             = llama_k3_model_load(path, NULL, &model, message, MESSAGE_SIZE);
    if (model) {
        sink += ask_everything(model);
    }
    llama_k3_model_free(model);
    return status;
}

static int load_files(int n, char ** paths) {
    for (int i = 0; i < n; i++) {
        char message[MESSAGE_SIZE];
        reset_peak();
        double start = now_ms();
        int status   = load(paths[i], message);
        double end   = now_ms();
        printf("%s\t%s\t%s\t%.3f\t%ld\n", paths[i], llama_k3_status_name(status), message, end - start, peak_kib());
    }
    return 0;
}

// xorshift64*: the same sequence everywhere.
static uint64_t next_random(uint64_t * state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545F4914F6CDD1Du;
}

static void overwrite(unsigned char * bytes, size_t size, size_t at, uint64_t value, size_t width) {
    for (size_t i = 0; i < width && at + i < size; i++) {
        bytes[at + i] = (unsigned char) (value >> (8 * i));
    }
}

// One to four changes, most of them in the header, which is `header` bytes long. Returns the new size.
static size_t mutate(unsigned char * bytes, size_t size, size_t header, uint64_t * random) {
    static const uint64_t special[SPECIAL_VALUES] = {
        0, 1, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, UINT64_MAX,
    };
    size_t changes = 1 + next_random(random) % 4;
    for (size_t i = 0; i < changes; i++) {
        size_t range = next_random(random) % 8 ? header : size;
        size_t at    = next_random(random) % range;
        switch (next_random(random) % 8) {
            case 0:
                if (i == 0) {
                    return at;
                }
                break;
            case 1: overwrite(bytes, size, at, special[next_random(random) % SPECIAL_VALUES], 8); break;
            case 2: overwrite(bytes, size, at, special[next_random(random) % SPECIAL_VALUES], 4); break;
            default: bytes[at] ^= (unsigned char) (1u << (next_random(random) % 8));
        }
    }
    return size;
}

static unsigned char * read_all(const char * path, size_t * size) {
    FILE * file           = fopen(path, "rb");
    unsigned char * bytes = NULL;
    if (file && fseek(file, 0, SEEK_END) == 0) {
        *size = (size_t) ftell(file);
        rewind(file);
        bytes = malloc(*size + 1);
        if (bytes && fread(bytes, 1, *size, file) != *size) {
            free(bytes);
            bytes = NULL;
        }
    }
    if (file) {
        fclose(file);
    }
    return bytes;
}

static bool write_all(const char * path, const unsigned char * bytes, size_t size) {
    FILE * file = fopen(path, "wb");
    bool ok     = file && fwrite(bytes, 1, size, file) == size;
    return file && fclose(file) == 0 && ok;
}

// A failed load has to say why.
static int fuzz(uint64_t seed, long count, size_t header, const char * path, const char * scratch) {
    size_t size;
    unsigned char * valid = read_all(path, &size);
    unsigned char * bytes = valid ? malloc(size + 1) : NULL;
    if (!bytes || header == 0 || header > size) {
        fprintf(stderr, "%s: cannot read, or no header of %zu bytes\n", path, header);
        free(bytes);
        free(valid);
        return 1;
    }
    long times[MAX_STATUS] = {0};
    uint64_t random        = seed * 2 + 1;
    int result             = 0;
    for (long i = 0; i < count && result == 0; i++) {
        char message[MESSAGE_SIZE];
        memcpy(bytes, valid, size);
        size_t new_size = mutate(bytes, size, header, &random);
        int status      = write_all(scratch, bytes, new_size) ? load(scratch, message) : -1;
        if (status < 0 || status >= MAX_STATUS || (status != LLAMA_K3_OK && !message[0])) {
            fprintf(stderr, "mutation %ld: status %d, message \"%s\"\n", i, status, status < 0 ? "" : message);
            result = 1;
        } else {
            times[status]++;
        }
    }
    for (int status = 0; status < MAX_STATUS; status++) {
        if (times[status]) {
            printf("%s\t%ld\n", llama_k3_status_name(status), times[status]);
        }
    }
    free(bytes);
    free(valid);
    return result;
}

int main(int argc, char ** argv) {
    if (argc == 7 && strcmp(argv[1], "--fuzz") == 0) {
        return fuzz(strtoull(argv[2], NULL, 10), strtol(argv[3], NULL, 10), strtoull(argv[4], NULL, 10), argv[5],
                    argv[6]);
    }
    if (argc < 2 || argv[1][0] == '-') {
        fprintf(stderr, "usage: load_file FILE... | load_file --fuzz SEED COUNT HEADER FILE TMP\n");
        return 2;
    }
    return load_files(argc - 1, argv + 1);
}
