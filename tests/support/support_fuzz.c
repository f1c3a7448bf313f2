/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/support_fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <weft/status.h>

#include "runtime/base/file.h"
#include "runtime/base/sync.h"
#include "tests/support/support.h"

void fuzz_check(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s (%s)\n", what, weft_last_error());
        abort();
    }
}

static double processor_seconds(void)
{
    struct timespec used;
    fuzz_check(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) == 0, "clock_gettime");
    return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    double began = processor_seconds();
    fuzz_one(data, size);
    fuzz_check(processor_seconds() - began < FUZZ_MOST_SECONDS, "it takes too long");
    return 0;
}

const weft_registry_t *fuzz_registry(void)
{
    static weft_registry_t *registry;
    if (registry == NULL) {
        fuzz_check(weft_registry_create(NULL, &registry) == WEFT_OK, "no registry");
    }
    return registry;
}

static void write_all(int fd, const uint8_t *data, size_t size)
{
    for (size_t at = 0; at < size;) {
        ssize_t now = write(fd, data + at, size - at);
        fuzz_check(now > 0, "cannot write");
        at += (size_t)now;
    }
}

const char *fuzz_file(const uint8_t *data, size_t size)
{
    static char path[64];
    static int fd = -1;
    if (fd < 0) {
        fd = memfd_create("weft-fuzz", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    fuzz_check(fd >= 0 && ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0, "memfd_create");
    write_all(fd, data, size);
    return path;
}

const uint8_t *fuzz_take(const uint8_t **data, size_t *size, size_t count, size_t *out_count)
{
    const uint8_t *taken = *data;
    *out_count = count < *size ? count : *size;
    *data += *out_count;
    *size -= *out_count;
    return taken;
}

void fuzz_sockets(const uint8_t *data, size_t size, int out_ends[2])
{
    fuzz_check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, out_ends) == 0, "socketpair");
    size_t most = 65536; /* a socket's buffer holds more */
    write_all(out_ends[1], data, size < most ? size : most);
    fuzz_check(shutdown(out_ends[1], SHUT_WR) == 0, "shutdown");
}

#ifndef WEFT_LIBFUZZER
enum { MAX_BYTES = 1 << 20, CHANGES = 6 };

typedef struct corpus {
    char **paths;
    size_t count;
} corpus_t;

static void add_path(corpus_t *corpus, const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s%s%s", folder, folder[0] != '\0' ? "/" : "", name);
    corpus->paths = realloc(corpus->paths, (corpus->count + 1) * sizeof *corpus->paths);
    fuzz_check(corpus->paths != NULL, "no memory");
    fuzz_check((corpus->paths[corpus->count++] = strdup(path)) != NULL, "no memory");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Files of the folder, or the file. True: it is a folder. */
static bool add_to_corpus(corpus_t *corpus, const char *path)
{
    struct stat facts;
    fuzz_check(stat(path, &facts) == 0, path);
    if (!S_ISDIR(facts.st_mode)) {
        add_path(corpus, "", path);
        return false;
    }
    size_t first = corpus->count;
    DIR *folder = opendir(path);
    fuzz_check(folder != NULL, path);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (entry->d_type == DT_REG) {
            add_path(corpus, path, entry->d_name);
        }
    }
    closedir(folder);
    qsort(corpus->paths + first, corpus->count - first, sizeof *corpus->paths, by_name);
    return true;
}

static size_t read_input(const char *path, uint8_t *bytes)
{
    wefti_mapping_t mapping;
    fuzz_check(wefti_file_map(path, &mapping) == WEFT_OK, path);
    size_t size = mapping.size_bytes < MAX_BYTES ? mapping.size_bytes : MAX_BYTES;
    if (size > 0) {
        memcpy(bytes, mapping.data, size);
    }
    wefti_file_unmap(&mapping);
    return size;
}

static void change_byte(uint8_t *byte, test_random_t *random)
{
    static const char text[] = "0123456789: FBCUPS.,%@-={}[]()\"<>/";
    switch (test_random_below(random, 4)) {
    case 0:
        *byte = (uint8_t)test_random(random);
        break;
    case 1:
        *byte ^= (uint8_t)(1u << test_random_below(random, 8));
        break;
    case 2: /* small numbers: tags, lengths, counts */
        *byte = (uint8_t)test_random_below(random, 40);
        break;
    default: /* what texts and properties are made of */
        *byte = (uint8_t)text[test_random_below(random, sizeof(text) - 1)];
    }
}

/* Returns the size. */
static size_t damage(uint8_t *bytes, size_t size, test_random_t *random)
{
    for (uint32_t i = test_random_below(random, CHANGES) + 1; i > 0 && size > 0; i--) {
        size_t at = test_next_random(&random->state) % size,
               from = test_next_random(&random->state) % size;
        size_t length = test_random_below(random, 16);
        switch (test_random_below(random, 8)) {
        case 0: /* copies */
            if (at + length < size && from + length < size) {
                memmove(bytes + at, bytes + from, length);
            }
            break;
        case 1: /* takes out */
            length = length < size - at ? length : size - at;
            memmove(bytes + at, bytes + at + length, size - at - length);
            size -= length;
            break;
        case 2: /* repeats */
            if (size + length < MAX_BYTES && at + length < size) {
                memmove(bytes + at + length, bytes + at, size - at);
                size += length;
            }
            break;
        case 3:
            size = test_random_below(random, 8) == 0 ? at : size;
            break;
        default:
            change_byte(&bytes[at], random);
        }
    }
    return size;
}

static void run_one(const uint8_t *bytes, size_t size)
{
    uint8_t *exact = malloc(size > 0 ? size : 1); /* reading beyond it is seen */
    fuzz_check(exact != NULL, "no memory");
    memcpy(exact, bytes, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

/* An option's number. */
static bool option(const char *argument, const char *name, uint64_t *out)
{
    size_t length = strlen(name);
    bool is = strncmp(argument, name, length) == 0;
    *out = is ? strtoull(argument + length, NULL, 10) : *out;
    return is;
}

int main(int argc, char **argv)
{
    corpus_t corpus = {0};
    uint64_t most = UINT64_MAX, seconds = UINT64_MAX / 2000000000u, runs = 0;
    test_random_t random = {wefti_now_ns()};
    bool damages = false;
    uint8_t *bytes = malloc(MAX_BYTES);
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] != '-') {
            damages |= add_to_corpus(&corpus, argv[i]);
        } else if (!option(argv[i], "-runs=", &most) && !option(argv[i], "-seed=", &random.state)) {
            (void)option(argv[i], "-max_total_time=", &seconds);
        }
    }
    fuzz_check(bytes != NULL && corpus.count > 0, "no input");
    printf("seed %llu\n", (unsigned long long)random.state);
    fflush(stdout);
    uint64_t end_ns = wefti_now_ns() + seconds * 1000000000u;
    for (; runs < corpus.count; runs++) {
        run_one(bytes, read_input(corpus.paths[runs], bytes));
    }
    for (; damages && runs < most && wefti_now_ns() < end_ns; runs++) {
        uint32_t which = test_random_below(&random, (uint32_t)corpus.count);
        size_t size = read_input(corpus.paths[which], bytes);
        run_one(bytes, damage(bytes, size, &random));
    }
    printf("Done %llu runs\n", (unsigned long long)runs);
    for (size_t i = 0; i < corpus.count; i++) {
        free(corpus.paths[i]);
    }
    free(corpus.paths);
    free(bytes);
    return 0;
}
#endif
