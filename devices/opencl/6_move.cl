/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between tensors with strides, and by index. Types are words of a size. */

#define MOST_DIMS 8

/* A work item has up to 16 elements of the last dimension. Table: rank, offsets, dims, strides. */
#define COPY(type, size)                                                                           \
    __kernel void copy_##size(IN(x), OUT(y), IN(table), ITEMS)                                     \
    {                                                                                              \
        POINTER(type, x);                                                                          \
        RESULT(type, y);                                                                           \
        POINTER(long, table);                                                                      \
        ITEM(size_t, item)                                                                         \
        const int last = (int)table[0] - 1;                                                        \
        __global const long *dims = table + 3, *in = dims + MOST_DIMS, *out = in + MOST_DIMS;      \
        const uint width = (uint)dims[last], runs = (width + 15) / 16;                             \
        uint left = (uint)item;                                                                    \
        const uint from = left % runs * 16, to = min(from + 16, width);                            \
        const long x_step = in[last], y_step = out[last];                                          \
        x += table[1] + from * x_step;                                                             \
        y += table[2] + from * y_step;                                                             \
        left /= runs;                                                                              \
        for (int d = last - 1; d >= 0; d--) {                                                      \
            x += left % (uint)dims[d] * in[d];                                                     \
            y += left % (uint)dims[d] * out[d];                                                    \
            left /= (uint)dims[d];                                                                 \
        }                                                                                          \
        for (uint i = 0; i < to - from; i++) {                                                     \
            y[i * y_step] = x[i * x_step];                                                         \
        }                                                                                          \
    }                                                                                              \
    __kernel void fill_##size(OUT(y), IN(table), ITEMS)                                            \
    {                                                                                              \
        RESULT(type, y);                                                                           \
        POINTER(long, table);                                                                      \
        ITEM(size_t, i)                                                                            \
        y[i] = (type)table[0];                                                                     \
    }
COPY(uchar, 1)
COPY(ushort, 2)
COPY(uint, 4)
COPY(ulong, 8)

/* An index from 0 to length - 1; a wrong one is reported, and 0 stands for it. */
long index_at(__global const uchar *indices, long wide, size_t at, long length, __global int *fault)
{
    const long given = wide ? ((__global const long *)indices)[at]
                            : ((__global const int *)indices)[at];
    const long index = given < 0 ? given + length : given;
    if (index < 0 || index >= length) {
        atomic_min(fault, (int)at);
        return 0;
    }
    return index;
}

/* X [outer, length, inner], indices [count] -> Y [outer, count, inner]; an element per work item */
#define GATHER(type, size)                                                                         \
    __kernel void gather_##size(IN(x), IN(indices), OUT(y), long length, long inner, long count,   \
                                long wide, __global int *fault, ITEMS)                             \
    {                                                                                              \
        POINTER(type, x);                                                                          \
        POINTER(uchar, indices);                                                                   \
        RESULT(type, y);                                                                           \
        ITEM(size_t, at)                                                                           \
        const uint column = (uint)at % (uint)inner, row = (uint)at / (uint)inner;                  \
        const uint i = row % (uint)count, outer = row / (uint)count;                               \
        const long from = index_at(indices, wide, i, length, fault);                               \
        y[at] = x[(outer * length + from) * inner + column];                                       \
    }                                                                                              \
    /* Tuples of indices; Table: their length, dims and strides of X */                            \
    __kernel void gather_nd_##size(IN(x), IN(indices), OUT(y), IN(table), long inner, long wide,   \
                                   __global int *fault, ITEMS)                                     \
    {                                                                                              \
        POINTER(type, x);                                                                          \
        POINTER(uchar, indices);                                                                   \
        RESULT(type, y);                                                                           \
        POINTER(long, table);                                                                      \
        ITEM(size_t, at)                                                                           \
        const uint column = (uint)at % (uint)inner, row = (uint)at / (uint)inner;                  \
        long from = column;                                                                        \
        for (int d = 0; d < table[0]; d++) {                                                       \
            from += index_at(indices, wide, row * table[0] + d, table[1 + d], fault) *             \
                    table[1 + MOST_DIMS + d];                                                      \
        }                                                                                          \
        y[at] = x[from];                                                                           \
    }
GATHER(uchar, 1)
GATHER(uint, 4)
GATHER(ulong, 8)

/* A work item has a column: rows are added in the order of the indices. */
__kernel void gather_grad(IN(dy), IN(indices), OUT(dx), long length, long inner, long count,
                          long wide, __global int *fault, ITEMS)
{
    POINTER(float, dy);
    POINTER(uchar, indices);
    RESULT(float, dx);
    ITEM(size_t, at)
    const long column = at % inner, outer = at / inner;
    dx += outer * length * inner + column;
    dy += outer * count * inner + column;
    for (long i = 0; i < length; i++) {
        dx[i * inner] = 0.0f;
    }
    for (long i = 0; i < count; i++) {
        dx[index_at(indices, wide, i, length, fault) * inner] += dy[i * inner];
    }
}
