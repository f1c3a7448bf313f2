/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators on elements, a row each, for C (elements.c) and for OpenCL C (4_elements.cl, which
 * follows this text): symbol, domain, operator, operands, names and values of the two numbers p and
 * q, and the result for a, b and c, 16 elements at once. Expressions are those of
 * ops/compute/functions.c and broadcast.c, so that bits are the same. IF selects by element; truth is
 * 1 or 0, as bool operands are.
 */
#define ELEMENTS(ROW)                                                                              \
    ROW(ADD, "", "Add", 2, "", 0, "", 0, a + b)                                                    \
    ROW(SUB, "", "Sub", 2, "", 0, "", 0, a - b)                                                    \
    ROW(MUL, "", "Mul", 2, "", 0, "", 0, a *b)                                                     \
    ROW(DIV, "", "Div", 2, "", 0, "", 0, a / b)                                                    \
    ROW(MAX, "", "Max", 2, "", 0, "", 0, IF(a > b || a != a, a, b))                                \
    ROW(MIN, "", "Min", 2, "", 0, "", 0, IF(a < b || a != a, a, b))                                \
    ROW(PRELU, "", "PRelu", 2, "", 0, "", 0, IF(a < 0.0f, a * b, a))                               \
    ROW(EQUAL, "", "Equal", 2, "", 0, "", 0, TRUTH(a == b))                                        \
    ROW(LESS, "", "Less", 2, "", 0, "", 0, TRUTH(a < b))                                           \
    ROW(LESS_EQUAL, "", "LessOrEqual", 2, "", 0, "", 0, TRUTH(a <= b))                             \
    ROW(GREATER, "", "Greater", 2, "", 0, "", 0, TRUTH(a > b))                                     \
    ROW(GREATER_EQUAL, "", "GreaterOrEqual", 2, "", 0, "", 0, TRUTH(a >= b))                       \
    ROW(AND, "", "And", 2, "", 0, "", 0, a *b)                                                     \
    ROW(OR, "", "Or", 2, "", 0, "", 0, fmax(a, b))                                                 \
    ROW(XOR, "", "Xor", 2, "", 0, "", 0, TRUTH(a != b))                                            \
    ROW(NOT, "", "Not", 1, "", 0, "", 0, 1.0f - a)                                                 \
    ROW(WHERE, "", "Where", 3, "", 0, "", 0, IF(a != 0.0f, b, c))                                  \
    ROW(CAST, "", "Cast", 1, "", 0, "", 0, a)                                                      \
    ROW(RELU, "", "Relu", 1, "", 0, "", 0, IF(a <= 0.0f, ALL(0.0f), a))                            \
    ROW(RELU_GRAD, "com.microsoft", "ReluGrad", 2, "", 0, "", 0, IF(b > 0.0f, a, ALL(0.0f)))       \
    ROW(TANH, "", "Tanh", 1, "", 0, "", 0, tanh_of16(a))                                           \
    ROW(TANH_GRAD, "weft", "TanhGrad", 2, "", 0, "", 0, a *(1.0f - b * b))                         \
    ROW(SIGMOID, "", "Sigmoid", 1, "", 0, "", 0, sigmoid_of16(a))                                  \
    ROW(SIGMOID_GRAD, "weft", "SigmoidGrad", 2, "", 0, "", 0, a *((1.0f - b) * b))                 \
    ROW(NEG, "", "Neg", 1, "", 0, "", 0, -a)                                                       \
    ROW(ABS, "", "Abs", 1, "", 0, "", 0, fabs(a))                                                  \
    ROW(ABS_GRAD, "weft", "AbsGrad", 2, "", 0, "", 0, a *SIGN_OF(b))                               \
    ROW(SIGN, "", "Sign", 1, "", 0, "", 0, SIGN_OF(a))                                             \
    ROW(FLOOR, "", "Floor", 1, "", 0, "", 0, floor(a))                                             \
    ROW(CEIL, "", "Ceil", 1, "", 0, "", 0, ceil(a))                                                \
    ROW(ROUND, "", "Round", 1, "", 0, "", 0, rint(a))                                              \
    ROW(EXP, "", "Exp", 1, "", 0, "", 0, exp_of16(a))                                              \
    ROW(LOG, "", "Log", 1, "", 0, "", 0, ln_of16(a))                                               \
    ROW(SQRT, "", "Sqrt", 1, "", 0, "", 0, sqrt(a))                                                \
    ROW(SQRT_GRAD, "weft", "SqrtGrad", 2, "", 0, "", 0, a *(0.5f / b))                             \
    ROW(RECIPROCAL, "", "Reciprocal", 1, "", 0, "", 0, 1.0f / a)                                   \
    ROW(RECIPROCAL_GRAD, "weft", "ReciprocalGrad", 2, "", 0, "", 0, -a *(b * b))                   \
    ROW(ERF, "", "Erf", 1, "", 0, "", 0, erf_of16(a))                                              \
    ROW(ERF_GRAD, "weft", "ErfGrad", 2, "", 0, "", 0,                                              \
        a *(1.12837917f * exp_of_negative16(-(b * b))))                                            \
    ROW(GELU, "", "Gelu", 1, "", 0, "", 0, 0.5f * a * (1.0f + erf_of16(a * SQRT_HALF)))            \
    ROW(GELU_GRAD, "weft", "GeluGrad", 2, "", 0, "", 0,                                            \
        a *(0.5f * (1.0f + erf_of16(b * SQRT_HALF)) +                                              \
            b * (exp_of_negative16(-0.5f * b * b) * 0.39894228f)))                                 \
    ROW(ELU, "", "Elu", 1, "alpha", 1, "", 0, IF(a < 0.0f, p * EXP_MINUS_1(a), a))                 \
    ROW(ELU_GRAD, "weft", "EluGrad", 2, "alpha", 1, "", 0, IF(b < 0.0f, a * (p * exp_of16(b)), a)) \
    ROW(LEAKY_RELU, "", "LeakyRelu", 1, "alpha", 0.01f, "", 0, IF(a < 0.0f, p * a, a))             \
    ROW(LEAKY_RELU_GRAD, "weft", "LeakyReluGrad", 2, "alpha", 0.01f, "", 0,                        \
        IF(b > 0.0f, a, p * a))                                                                    \
    ROW(HARD_SIGMOID, "", "HardSigmoid", 1, "alpha", 0.2f, "beta", 0.5f, INTO_0_1(p *a + q))       \
    ROW(HARD_SIGMOID_GRAD, "weft", "HardSigmoidGrad", 2, "alpha", 0.2f, "beta", 0.5f,              \
        IF(b <= 0.0f || b >= 1.0f, ALL(0.0f), p * a))                                              \
    ROW(HARD_SWISH, "", "HardSwish", 1, "", 0, "", 0, a *INTO_0_1(a *(1.0f / 6.0f) + 0.5f))        \
    ROW(HARD_SWISH_GRAD, "weft", "HardSwishGrad", 2, "", 0, "", 0,                                 \
        IF(b < -3.0f, ALL(0.0f), IF(b > 3.0f, a, a * (b * (1.0f / 3.0f) + 0.5f))))                 \
    ROW(SOFTSIGN, "", "Softsign", 1, "", 0, "", 0, a / (1.0f + fabs(a)))                           \
    ROW(SOFTSIGN_GRAD, "weft", "SoftsignGrad", 2, "", 0, "", 0,                                    \
        a / ((1.0f + fabs(b)) * (1.0f + fabs(b))))                                                 \
    ROW(SWISH, "", "Swish", 1, "alpha", 1, "", 0, a / (1.0f + exp_of16(-(p * a))))                 \
    ROW(SWISH_GRAD, "weft", "SwishGrad", 2, "alpha", 1, "", 0,                                     \
        a *(sigmoid_of16(p * b) * (1.0f + p * b * (1.0f - sigmoid_of16(p * b)))))                  \
    ROW(DROPOUT_GRAD, "weft", "DropoutGrad", 2, "scale", 1, "", 0,                                 \
        IF(b != 0.0f, a * p, ALL(0.0f)))                                                           \
    ROW(POW, "", "Pow", 1, "exponent", 0, "", 0, power_of16(a, p))                                 \
    ROW(POW_GRAD, "weft", "PowGrad", 2, "exponent", 0, "", 0, a *slope_of16(b, p))

/* Forms of the operators above, by an attribute. */
#define ELEMENT_FORMS(ROW)                                                                         \
    ROW(GELU_TANH, "", "Gelu:tanh", 1, "", 0, "", 0, 0.5f * a * (1.0f + gelu_inner16(a)))          \
    ROW(GELU_TANH_GRAD, "weft", "GeluGrad:tanh", 2, "", 0, "", 0,                                  \
        a *(0.5f * (1.0f + gelu_inner16(b)) + 0.5f * b *                                           \
                                                  (1.0f - gelu_inner16(b) * gelu_inner16(b)) *     \
                                                  0.79788456f * (1.0f + 0.134145f * b * b)))
