/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions of up to 8 sources per call, in the tree of ops/reduce: neighbours first, split at the
 * largest power of two. More sources take several calls, whose results between are wide: f32 for
 * half types, 64 bits for integers. Every type has a function; addresses are a buffer and a byte
 * offset in it.
 */
#pragma OPENCL FP_CONTRACT OFF
#ifdef WEFT_F64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

/* Groups of work items have one size, so that a function is compiled once; the last ones are over. */
#define ITEMS ulong items
#define ITEM(type, name)                                                                           \
    const type name = get_global_id(0);                                                            \
    if ((ulong)name >= items) {                                                                    \
        return;                                                                                    \
    }

#define OP_AVG 1
#define OP_PROD 2
#define OP_MIN 3
#define OP_MAX 4

float from_bf16(ushort half_bits)
{
    return as_float((uint)half_bits << 16);
}

ushort to_bf16(float value)
{
    uint bits = as_uint(value);
    return (bits & 0x7fffffffu) > 0x7f800000u ? (ushort)0x7fc0
                                              : (ushort)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float from_f16(ushort half_bits)
{
    uint sign = (uint)(half_bits & 0x8000u) << 16, rest = half_bits & 0x7fffu;
    if (rest >= 0x7c00u) {
        return as_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    }
    if (rest < 0x400u) {
        return as_float(sign | as_uint((float)rest * 0x1p-24f));
    }
    return as_float(sign | ((rest << 13) + (112u << 23)));
}

ushort to_f16(float value)
{
    uint bits = as_uint(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) {
        return (ushort)0x7e00;
    }
    if (rest >= 0x477ff000u) {
        return (ushort)(sign | 0x7c00u);
    }
    if (rest < 0x38800000u) { /* the addition rounds: 0.5 has a last bit of 2^-24 */
        return (ushort)(sign | (as_uint(as_float(rest) + 0.5f) - 0x3f000000u));
    }
    rest += 0xfffu + (rest >> 13 & 1u);
    return (ushort)(sign | (rest - (112u << 23)) >> 13);
}

/* Equal floats with different bits are zeros: minimum -0, maximum +0. */
#define DEFINE_PICK(type, bits, as_type, as_bits)                                                  \
    type pick_##type(type a, type b, int less)                                                     \
    {                                                                                              \
        if (a != a || b != b) {                                                                    \
            return a + b;                                                                          \
        }                                                                                          \
        if (a < b || b < a) {                                                                      \
            return (a < b) == less ? a : b;                                                        \
        }                                                                                          \
        return as_type(less ? as_bits(a) | as_bits(b) : as_bits(a) & as_bits(b));                  \
    }
DEFINE_PICK(float, uint, as_float, as_uint)

float divide_float(float value, uint divisor)
{
    return (divisor & (divisor - 1)) == 0 ? value * (1.0f / (float)divisor)
                                          : value / (float)divisor;
}

long pick_long(long a, long b, int less)
{
    return less ? min(a, b) : max(a, b);
}

ulong pick_ulong(ulong a, ulong b, int less)
{
    return less ? min(a, b) : max(a, b);
}

long divide_long(long value, uint divisor)
{
    return value / (long)divisor;
}

ulong divide_ulong(ulong value, uint divisor)
{
    return value / divisor;
}

#ifdef WEFT_F64
DEFINE_PICK(double, ulong, as_double, as_ulong)

double divide_double(double value, uint divisor)
{
    return value / (double)divisor;
}
#endif

#define SOURCE(k) __global const uchar *s##k, ulong o##k

/* name: the function; type: in memory; acc: of the sum; in, out: between the two */
#define DEFINE_REDUCE(name, type, acc, in, out)                                                    \
    acc combine_##name(acc a, acc b, int op)                                                       \
    {                                                                                              \
        return op == OP_PROD                  ? a * b                                              \
               : op == OP_MIN || op == OP_MAX ? pick_##acc(a, b, op == OP_MIN)                     \
                                              : a + b;                                             \
    }                                                                                              \
    acc load_##name(__global const uchar *source, ulong offset, int wide, size_t i)                \
    {                                                                                              \
        source += offset;                                                                          \
        return wide ? ((__global const acc *)source)[i] : in(((__global const type *)source)[i]);  \
    }                                                                                              \
    __kernel void reduce_##name(SOURCE(0), SOURCE(1), SOURCE(2), SOURCE(3), SOURCE(4), SOURCE(5),  \
                                SOURCE(6), SOURCE(7), __global uchar *d, ulong od, int count,      \
                                int wide, int finish, int op, uint divisor, ITEMS)                 \
    {                                                                                              \
        ITEM(size_t, i)                                                                            \
        acc v[8];                                                                                  \
        v[0] = load_##name(s0, o0, wide, i);                                                       \
        v[1] = count > 1 ? load_##name(s1, o1, wide, i) : v[0];                                    \
        v[2] = count > 2 ? load_##name(s2, o2, wide, i) : v[0];                                    \
        v[3] = count > 3 ? load_##name(s3, o3, wide, i) : v[0];                                    \
        v[4] = count > 4 ? load_##name(s4, o4, wide, i) : v[0];                                    \
        v[5] = count > 5 ? load_##name(s5, o5, wide, i) : v[0];                                    \
        v[6] = count > 6 ? load_##name(s6, o6, wide, i) : v[0];                                    \
        v[7] = count > 7 ? load_##name(s7, o7, wide, i) : v[0];                                    \
        for (int w = 1; w < count; w *= 2) {                                                       \
            for (int k = 0; k + w < count; k += 2 * w) {                                           \
                v[k] = combine_##name(v[k], v[k + w], op);                                         \
            }                                                                                      \
        }                                                                                          \
        if (!finish) {                                                                             \
            ((__global acc *)(d + od))[i] = v[0];                                                  \
            return;                                                                                \
        }                                                                                          \
        const acc result = op == OP_AVG ? divide_##acc(v[0], divisor) : v[0];                      \
        ((__global type *)(d + od))[i] = out(result);                                              \
    }

#define SAME(x) (x)
#define OUT_F32(x) ((x) != (x) ? as_float(0x7fc00000u) : (x))
DEFINE_REDUCE(f32, float, float, SAME, OUT_F32)
DEFINE_REDUCE(f16, ushort, float, from_f16, to_f16)
DEFINE_REDUCE(bf16, ushort, float, from_bf16, to_bf16)
DEFINE_REDUCE(i64, long, long, (long), (long))
DEFINE_REDUCE(i32, int, long, (long), (int))
DEFINE_REDUCE(i16, short, long, (long), (short))
DEFINE_REDUCE(i8, char, long, (long), (char))
DEFINE_REDUCE(u64, ulong, ulong, (ulong), (ulong))
DEFINE_REDUCE(u32, uint, ulong, (ulong), (uint))
DEFINE_REDUCE(u16, ushort, ulong, (ulong), (ushort))
DEFINE_REDUCE(u8, uchar, ulong, (ulong), (uchar))
#ifdef WEFT_F64
#define OUT_F64(x) ((x) != (x) ? as_double(0x7ff8000000000000ul) : (x))
DEFINE_REDUCE(f64, double, double, SAME, OUT_F64)
#endif
