/* SPDX-License-Identifier: Apache-2.0 */
#include "support_fake_card.h"

#include "ops/reduce/reduce.h"
#include "runtime/base/error.h"
#include "runtime/base/sync.h"
#include "tests/runtime/support_fake_plugin.h"

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

weft_status_t (*fake_card_error)(weft_status_t status, const char *text);

/* In a plugin this library's messages are not the program's. */
static weft_status_t fail(weft_status_t status, const char *format, ...) WEFT_PRINTF(2, 3);
static weft_status_t fail(weft_status_t status, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return fake_card_error != NULL ? fake_card_error(status, text)
                                   : wefti_error(status, "%s", text);
}

/* Far outside what a processor can address: touching it is a fault, never another mapping. */
#define SHIFT ((uintptr_t)1 << 60)
#define LATE_POLLS 3u /* queries that still say "in progress" once everything is done */

typedef enum command_kind { COPY, SIGNAL, WAIT, REDUCE, LAUNCH } command_kind_t;

typedef struct command {
    struct command *next;
    command_kind_t kind;
    void *dst;
    const void *src;
    size_t bytes;
    uint32_t value;
    weft_reduce_t reduce;
    const weft_kernel_t *kernel;
    weft_kernel_call_t call;
    void **pointers; /* arrays of REDUCE and LAUNCH, translated */
    const char *label;
} command_t;

typedef struct fake_card {
    weft_device_t base;
    _Atomic int live; /* queues and allocations */
    _Atomic int fail_after;
} fake_card_t;

struct weft_queue {
    fake_card_t *card;
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t change;
    command_t *first, **last;
    bool stop, running;
    uint32_t late;
    weft_status_t status;
    char text[256];
    bool profiling;
    const char *label;
    weft_command_t *times; /* of commands that are done */
    size_t time_count;
    _Atomic bool cancelled;
};

static bool on_card(const void *address)
{
    return ((uintptr_t)address & SHIFT) != 0;
}

/* What the card itself sees behind an address; host addresses (of copies) stay. */
static void *translate(const void *address)
{
    uintptr_t value = (uintptr_t)address;
    return (void *)(on_card(address) ? value - SHIFT : value);
}

/* In front of every allocation: imported memory lives until the last rank has let go of it. */
typedef struct allocation {
    size_t bytes;
    _Atomic int references;
} allocation_t;

/* Whether this is the call that fails. */
static bool fails(fake_card_t *card)
{
    int left = atomic_load(&card->fail_after);
    return left >= 0 && atomic_fetch_sub(&card->fail_after, 1) == 0;
}

static weft_status_t mem_alloc(weft_device_t *device, size_t bytes, void **out_address)
{
    void *memory_or_failed = MAP_FAILED;
    if (bytes <= SIZE_MAX - 4096 && !fails((fake_card_t *)device)) {
        memory_or_failed = mmap(NULL, bytes + 4096, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    allocation_t *memory = memory_or_failed;
    if (memory == MAP_FAILED) {
        return fail(WEFT_ERR_NO_MEMORY, "the fake card has no %zu bytes", bytes);
    }
    memory->bytes = bytes + 4096;
    memory->references = 1;
    ((fake_card_t *)device)->live++;
    *out_address = (void *)((uintptr_t)memory + 4096 + SHIFT);
    return WEFT_OK;
}

static allocation_t *allocation_of(const void *address)
{
    return (void *)((uintptr_t)translate(address) - 4096);
}

static void mem_free(weft_device_t *device, void *address)
{
    if (address != NULL) {
        allocation_t *memory = allocation_of(address);
        if (--memory->references == 0) {
            munmap(memory, memory->bytes);
        }
        ((fake_card_t *)device)->live--;
    }
}

static weft_status_t mem_export(weft_device_t *device, void *address, uint8_t out_handle[64])
{
    (void)device;
    memset(out_handle, 0, 64);
    memcpy(out_handle, &address, sizeof(address));
    return WEFT_OK;
}

static weft_status_t mem_import(weft_device_t *device, const uint8_t handle[64], void **out_address)
{
    memcpy(out_address, handle, sizeof(*out_address));
    allocation_of(*out_address)->references++;
    ((fake_card_t *)device)->live++;
    return WEFT_OK;
}

static void mem_unimport(weft_device_t *device, void *address)
{
    mem_free(device, address);
}

/* As on cards whose driver knows memory by its address. */
static weft_status_t mem_handle(weft_device_t *device, const void *address, void **out_handle,
                                uint64_t *out_offset_bytes)
{
    (void)device;
    if (!on_card(address)) {
        return fail(WEFT_ERR_INVALID_ARGUMENT, "the fake card has no memory at %p", address);
    }
    *out_handle = (void *)(uintptr_t)address;
    *out_offset_bytes = 0;
    return WEFT_OK;
}

static weft_status_t mem_wrap(weft_device_t *device, void *handle, uint64_t bytes,
                              void **out_address)
{
    (void)bytes;
    ((fake_card_t *)device)->live++;
    *out_address = handle;
    return WEFT_OK;
}

static void mem_unwrap(weft_device_t *device, void *address)
{
    (void)address;
    ((fake_card_t *)device)->live--;
}

static weft_status_t run_wait(weft_queue_t *queue, const command_t *command)
{
    const _Atomic uint32_t *counter = translate(command->src);
    while (!wefti_signal_reached(atomic_load_explicit(counter, memory_order_acquire),
                                 command->value)) {
        if (queue->cancelled) {
            return wefti_error(WEFT_ERR_ABORTED, "the queue was cancelled");
        }
        sched_yield();
    }
    return WEFT_OK;
}

static bool aligned(const command_t *command)
{
    return (((uintptr_t)command->src | (uintptr_t)command->dst) & (sizeof(uint32_t) - 1)) == 0;
}

/* FAKE_COPY_MB_PER_S: copies between host and card take as long as over such a link. */
static void take_time(const command_t *command)
{
    const char *rate = getenv("FAKE_COPY_MB_PER_S");
    if (rate != NULL && on_card(command->src) != on_card(command->dst)) {
        wefti_sleep_ns((uint64_t)((double)command->bytes * 1e3 / strtod(rate, NULL)));
    }
}

static weft_status_t run_command(weft_queue_t *queue, const command_t *command)
{
    switch (command->kind) {
    case COPY:
        take_time(command);
        if (command->bytes == sizeof(uint32_t) && aligned(command)) { /* a word others may poll */
            uint32_t word = atomic_load((_Atomic uint32_t *)translate(command->src));
            atomic_store((_Atomic uint32_t *)translate(command->dst), word);
        } else {
            memcpy(translate(command->dst), translate(command->src), command->bytes);
        }
        return WEFT_OK;
    case SIGNAL:
        atomic_store((_Atomic uint32_t *)translate(command->dst), command->value);
        return WEFT_OK;
    case WAIT:
        return run_wait(queue, command);
    case REDUCE:
        return wefti_reduce(&command->reduce, WEFT_ISA_PORTABLE);
    case LAUNCH:
        return command->kernel->run(&command->call);
    }
    return WEFT_ERR_INTERNAL;
}

static const char *const names[] = {"copy", "fill", NULL, "kernel", "kernel"};

/* Not of waits. */
static void keep_times(weft_queue_t *queue, const weft_command_t *times)
{
    if (queue->profiling && times->name != NULL) {
        weft_command_t *all = realloc(queue->times, (queue->time_count + 1) * sizeof *queue->times);
        if (all != NULL) {
            queue->times = all;
            all[queue->time_count++] = *times;
        }
    }
}

static void *queue_main(void *user)
{
    weft_queue_t *queue = user;
    pthread_mutex_lock(&queue->lock);
    for (;;) {
        while (queue->first == NULL && !queue->stop) {
            pthread_cond_wait(&queue->change, &queue->lock);
        }
        if (queue->first == NULL) {
            pthread_mutex_unlock(&queue->lock);
            return NULL;
        }
        command_t *command = queue->first;
        queue->first = command->next;
        queue->last = queue->first != NULL ? queue->last : &queue->first;
        bool skip = queue->status < 0;
        queue->running = true;
        pthread_mutex_unlock(&queue->lock);
        weft_command_t times = {.name = names[command->kind], .label = command->label};
        times.start_ns = wefti_now_ns();
        weft_status_t status = skip ? WEFT_OK : run_command(queue, command);
        times.end_ns = wefti_now_ns();
        free(command->pointers);
        free(command);
        pthread_mutex_lock(&queue->lock);
        keep_times(queue, &times);
        queue->running = false;
        queue->late = LATE_POLLS;
        if (status < 0) {
            queue->status = status;
            snprintf(queue->text, sizeof(queue->text), "%s", weft_last_error());
        }
    }
}

static weft_status_t queue_create(weft_device_t *device, weft_queue_t **out_queue)
{
    weft_queue_t *queue = fails((fake_card_t *)device) ? NULL : calloc(1, sizeof(*queue));
    if (queue == NULL) {
        return fail(WEFT_ERR_NO_MEMORY, "no room for a queue");
    }
    queue->card = (fake_card_t *)device;
    queue->last = &queue->first;
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->change, NULL);
    pthread_create(&queue->thread, NULL, queue_main, queue);
    queue->card->live++;
    *out_queue = queue;
    return WEFT_OK;
}

static void queue_destroy(weft_queue_t *queue)
{
    pthread_mutex_lock(&queue->lock);
    queue->stop = true;
    pthread_cond_signal(&queue->change);
    pthread_mutex_unlock(&queue->lock);
    pthread_join(queue->thread, NULL);
    queue->card->live--;
    pthread_mutex_destroy(&queue->lock);
    pthread_cond_destroy(&queue->change);
    free(queue->times);
    free(queue);
}

static weft_status_t push(weft_queue_t *queue, const command_t *command)
{
    command_t *copy = fails(queue->card) ? NULL : malloc(sizeof(*copy));
    if (copy == NULL) {
        free(command->pointers);
        return fail(WEFT_ERR_NO_MEMORY, "no room for a command");
    }
    *copy = *command;
    copy->next = NULL;
    pthread_mutex_lock(&queue->lock);
    copy->label = queue->label;
    *queue->last = copy;
    queue->last = &copy->next;
    pthread_cond_signal(&queue->change);
    pthread_mutex_unlock(&queue->lock);
    return WEFT_OK;
}

static weft_status_t copy(weft_queue_t *queue, void *dst, const void *src, size_t bytes)
{
    return push(queue, &(command_t){.kind = COPY, .dst = dst, .src = src, .bytes = bytes});
}

static weft_status_t need_card(const void *address, const char *what)
{
    return on_card(address)
               ? WEFT_OK
               : fail(WEFT_ERR_INVALID_ARGUMENT, "the fake card was given host memory as %s", what);
}

static weft_status_t signal_counter(weft_queue_t *queue, uint32_t *counter, uint32_t value)
{
    weft_status_t status = need_card(counter, "a counter");
    return status < 0 ? status
                      : push(queue, &(command_t){.kind = SIGNAL, .dst = counter, .value = value});
}

static weft_status_t wait_counter(weft_queue_t *queue, const uint32_t *counter, uint32_t value)
{
    weft_status_t status = need_card(counter, "a counter");
    return status < 0 ? status
                      : push(queue, &(command_t){.kind = WAIT, .src = counter, .value = value});
}

/* Two arrays of device addresses as one of the card's own; absent ones stay NULL. */
static weft_status_t translate_all(const void *const *a, size_t a_count, const void *const *b,
                                   size_t b_count, void ***out)
{
    *out = calloc(a_count + b_count + 1, sizeof(void *));
    for (size_t i = 0; *out != NULL && i < a_count + b_count; i++) {
        const void *address = i < a_count ? a[i] : b[i - a_count];
        if (address != NULL && need_card(address, "a tensor") < 0) {
            free(*out);
            return WEFT_ERR_INVALID_ARGUMENT;
        }
        (*out)[i] = translate(address);
    }
    return *out != NULL ? WEFT_OK : fail(WEFT_ERR_NO_MEMORY, "no room for a command");
}

static weft_status_t reduce(weft_queue_t *queue, const weft_reduce_t *what)
{
    command_t command = {.kind = REDUCE, .reduce = *what};
    weft_status_t status =
        translate_all(what->sources, what->source_count, (const void *const *)what->destinations,
                      what->destination_count, &command.pointers);
    if (status < 0) {
        return status;
    }
    command.reduce.sources = (const void *const *)command.pointers;
    command.reduce.destinations = command.pointers + what->source_count;
    return push(queue, &command);
}

static weft_status_t launch(weft_queue_t *queue, const weft_kernel_t *kernel,
                            const weft_kernel_call_t *call, uint32_t input_count,
                            uint32_t output_count)
{
    command_t command = {.kind = LAUNCH, .kernel = kernel, .call = *call};
    weft_status_t status =
        translate_all(call->inputs, input_count, (const void *const *)call->outputs, output_count,
                      &command.pointers);
    if (status < 0) {
        return status;
    }
    command.call.inputs = (const void *const *)command.pointers;
    command.call.outputs = command.pointers + input_count;
    command.call.scratch = translate(call->scratch);
    return push(queue, &command);
}

static weft_status_t flush(weft_queue_t *queue)
{
    (void)queue;
    return WEFT_OK;
}

static weft_status_t query(weft_queue_t *queue)
{
    pthread_mutex_lock(&queue->lock);
    weft_status_t status = queue->status;
    if (queue->first != NULL || queue->running) {
        status = WEFT_IN_PROGRESS;
    } else if (status >= 0 && queue->late > 0) {
        queue->late--;
        status = WEFT_IN_PROGRESS;
    } else if (status < 0) {
        fail(status, "%s", queue->text);
    }
    pthread_mutex_unlock(&queue->lock);
    return status;
}

static void cancel(weft_queue_t *queue)
{
    queue->cancelled = true;
}

static weft_status_t profile(weft_queue_t *queue, const char *label)
{
    pthread_mutex_lock(&queue->lock);
    queue->profiling = true;
    queue->label = label;
    pthread_mutex_unlock(&queue->lock);
    return WEFT_OK;
}

static weft_status_t profile_take(weft_queue_t *queue, weft_command_t *out_commands,
                                  size_t capacity, size_t *out_count)
{
    pthread_mutex_lock(&queue->lock);
    size_t count = queue->time_count < capacity ? queue->time_count : capacity;
    if (count > 0) {
        memcpy(out_commands, queue->times, count * sizeof *queue->times);
        queue->time_count -= count;
        memmove(queue->times, queue->times + count, queue->time_count * sizeof *queue->times);
    }
    pthread_mutex_unlock(&queue->lock);
    *out_count = count;
    return WEFT_OK;
}

static const weft_device_ops_t ops = {.abi_version = WEFT_DEVICE_ABI_VERSION,
                                      .name = "fake card",
                                      .caps = WEFT_DEVICE_PEER_DIRECT,
                                      .mem_alloc = mem_alloc,
                                      .mem_free = mem_free,
                                      .mem_export = mem_export,
                                      .mem_import = mem_import,
                                      .mem_unimport = mem_unimport,
                                      .queue_create = queue_create,
                                      .queue_destroy = queue_destroy,
                                      .copy = copy,
                                      .signal = signal_counter,
                                      .wait = wait_counter,
                                      .reduce = reduce,
                                      .launch = launch,
                                      .flush = flush,
                                      .query = query,
                                      .cancel = cancel,
                                      .mem_handle = mem_handle,
                                      .mem_wrap = mem_wrap,
                                      .mem_unwrap = mem_unwrap,
                                      .profile = profile,
                                      .profile_take = profile_take,
                                      .dlpack_type = 12};

weft_status_t fake_card_create(weft_device_t **out_device)
{
    fake_card_t *card = calloc(1, sizeof(*card));
    if (card == NULL) {
        return fail(WEFT_ERR_NO_MEMORY, "no room for a card");
    }
    card->base.ops = &ops;
    card->fail_after = -1;
    *out_device = &card->base;
    return WEFT_OK;
}

int fake_card_destroy(weft_device_t *device)
{
    int live = ((fake_card_t *)device)->live;
    free(device);
    return live;
}

void fake_card_fail(weft_device_t *device, int after)
{
    ((fake_card_t *)device)->fail_after = after;
}
