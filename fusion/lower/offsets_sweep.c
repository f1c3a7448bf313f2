/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Best fit in the order of time, in O(n log n): a sweep over positions that frees what is dead and
 * places what begins, as an allocator would. Blocks tile the memory from 0 to the top in a list;
 * the free ones are also in a treap by (size, offset), so that the smallest that is large enough,
 * and of those the lowest, is found at once. Neighbouring free blocks are one; what is free at the
 * top is given back.
 */
#include "fusion/lower/offsets.h"

#include <stdlib.h>

#include "runtime/base/error.h"

#define NIL UINT32_MAX

typedef struct block {
    uint64_t offset, size;
    uint32_t below, above; /* neighbours */
    uint32_t left, right;  /* in the treap, when free */
    uint32_t priority;
    bool free;
} block_t;

typedef struct sweep {
    block_t *blocks;
    uint32_t used, spare; /* blocks ever taken; list of those given back, by above */
    uint32_t root, top;   /* of the treap; the highest block */
    uint64_t end;         /* bytes in blocks */
    uint64_t most;        /* of end, ever */
} sweep_t;

/* Any fixed scattering will do; the same everywhere. */
static uint32_t scatter(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x45d9f3bu;
    x = (x ^ (x >> 16)) * 0x45d9f3bu;
    return x ^ (x >> 16);
}

static bool less(const block_t *a, uint64_t size, uint64_t offset)
{
    return a->size != size ? a->size < size : a->offset < offset;
}

static void split(sweep_t *s, uint32_t tree, uint64_t size, uint64_t offset, uint32_t *out_left,
                  uint32_t *out_right)
{
    while (tree != NIL) {
        block_t *node = &s->blocks[tree];
        if (less(node, size, offset)) {
            *out_left = tree;
            out_left = &node->right;
            tree = node->right;
        } else {
            *out_right = tree;
            out_right = &node->left;
            tree = node->left;
        }
    }
    *out_left = *out_right = NIL;
}

static uint32_t join(sweep_t *s, uint32_t left, uint32_t right)
{
    uint32_t root = NIL, *at = &root;
    while (left != NIL && right != NIL) {
        if (s->blocks[left].priority >= s->blocks[right].priority) {
            *at = left;
            at = &s->blocks[left].right;
            left = *at;
        } else {
            *at = right;
            at = &s->blocks[right].left;
            right = *at;
        }
    }
    *at = left != NIL ? left : right;
    return root;
}

static void insert_free(sweep_t *s, uint32_t index)
{
    block_t *block = &s->blocks[index];
    uint32_t *at = &s->root;
    while (*at != NIL && s->blocks[*at].priority >= block->priority) {
        block_t *node = &s->blocks[*at];
        at = less(node, block->size, block->offset) ? &node->right : &node->left;
    }
    split(s, *at, block->size, block->offset, &block->left, &block->right);
    *at = index;
    block->free = true;
}

static void remove_free(sweep_t *s, uint32_t index)
{
    block_t *block = &s->blocks[index];
    uint32_t *at = &s->root;
    while (*at != index) {
        block_t *node = &s->blocks[*at];
        at = less(node, block->size, block->offset) ? &node->right : &node->left;
    }
    *at = join(s, block->left, block->right);
    block->free = false;
}

/* The smallest free block of at least size bytes, the lowest of several, or NIL. */
static uint32_t find_free(const sweep_t *s, uint64_t size)
{
    uint32_t found = NIL;
    for (uint32_t at = s->root; at != NIL;) {
        if (less(&s->blocks[at], size, 0)) {
            at = s->blocks[at].right;
        } else {
            found = at;
            at = s->blocks[at].left;
        }
    }
    return found;
}

static uint32_t take_block(sweep_t *s)
{
    uint32_t index = s->spare;
    if (index == NIL) {
        index = s->used++;
    } else {
        s->spare = s->blocks[index].above;
    }
    s->blocks[index].priority = scatter(index + 1);
    s->blocks[index].free = false;
    return index;
}

static void give_block(sweep_t *s, uint32_t index)
{
    s->blocks[index].above = s->spare;
    s->spare = index;
}

/* Puts a new block of size bytes above block below (NIL: lowest of all). */
static uint32_t put_above(sweep_t *s, uint32_t below, uint64_t offset, uint64_t size)
{
    uint32_t index = take_block(s);
    block_t *block = &s->blocks[index];
    block->offset = offset;
    block->size = size;
    block->below = below;
    block->above = below == NIL ? NIL : s->blocks[below].above;
    if (below != NIL) {
        s->blocks[below].above = index;
    }
    if (block->above != NIL) {
        s->blocks[block->above].below = index;
    } else {
        s->top = index;
    }
    return index;
}

static uint32_t allocate(sweep_t *s, uint64_t size)
{
    uint32_t index = find_free(s, size);
    if (index == NIL) {
        index = put_above(s, s->top, s->end, size);
        s->end += size;
        s->most = s->end > s->most ? s->end : s->most;
        return index;
    }
    remove_free(s, index);
    uint64_t rest = s->blocks[index].size - size;
    if (rest > 0) {
        s->blocks[index].size = size;
        insert_free(s, put_above(s, index, s->blocks[index].offset + size, rest));
    }
    return index;
}

/* Takes the block above index, which is free, into it. */
static void swallow(sweep_t *s, uint32_t index)
{
    block_t *block = &s->blocks[index];
    uint32_t above = block->above;
    block->size += s->blocks[above].size;
    block->above = s->blocks[above].above;
    if (block->above != NIL) {
        s->blocks[block->above].below = index;
    } else {
        s->top = index;
    }
    give_block(s, above);
}

static void release(sweep_t *s, uint32_t index)
{
    uint32_t above = s->blocks[index].above, below = s->blocks[index].below;
    if (above != NIL && s->blocks[above].free) {
        remove_free(s, above);
        swallow(s, index);
    }
    if (below != NIL && s->blocks[below].free) {
        remove_free(s, below);
        swallow(s, below);
        index = below;
    }
    if (s->top != index) {
        insert_free(s, index);
        return;
    }
    s->top = s->blocks[index].below;
    s->end = s->blocks[index].offset;
    if (s->top != NIL) {
        s->blocks[s->top].above = NIL;
    }
    give_block(s, index);
}

static int compare_last(const void *a, const void *b)
{
    const wefti_memory_slot_t *x = *(const wefti_memory_slot_t *const *)a,
                              *y = *(const wefti_memory_slot_t *const *)b;
    if (x->last != y->last) {
        return x->last < y->last ? -1 : 1;
    }
    return (x->item > y->item) - (x->item < y->item);
}

weft_status_t wefti_memory_sweep(wefti_memory_slot_t *slots, uint32_t count,
                                 const weft_allocator_t *allocator, uint64_t *out_total)
{
    /* A block for every slot, and at most one free one beside each. */
    sweep_t s = {.spare = NIL, .root = NIL, .top = NIL};
    wefti_memory_slot_t **ends = wefti_alloc(allocator, ((size_t)count + 1) * sizeof(*ends));
    s.blocks = wefti_alloc(allocator, (2 * (size_t)count + 2) * sizeof(*s.blocks));
    weft_status_t status = ends == NULL || s.blocks == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
    for (uint32_t i = 0; i < count && status == WEFT_OK; i++) {
        ends[i] = &slots[i];
    }
    if (status == WEFT_OK) {
        qsort(ends, count, sizeof(*ends), compare_last);
    }
    for (uint32_t i = 0, dead = 0; i < count && status == WEFT_OK; i++) {
        while (ends[dead]->last < slots[i].first) {
            release(&s, ends[dead++]->block);
        }
        slots[i].block = allocate(&s, slots[i].size_bytes);
        slots[i].offset_bytes = s.blocks[slots[i].block].offset;
    }
    *out_total = s.most;
    wefti_free(allocator, s.blocks);
    wefti_free(allocator, ends);
    return status;
}
