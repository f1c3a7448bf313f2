/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The facts of a definition (weft_op_facts_t) against what the operator's kernel computes. Every
 * definition with a fact about values and a kernel has a row below.
 */
#include "tests/ops/support_kernel.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/types.h>

#include "ops/op_facts.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/sync.h"

/*
 * inputs: "f2x3" random f32, "p2x3" random and positive, "m2x3" random u8 of 0 and 1, "b2x3" random
 * bool, "i2" i64 of 0,
 * "=4,-1" a constant list of i64, "#1" one f32 of 1, "-" absent. attrs: "axis=1 pads=0,1,0,1";
 * "ratio=f0.5" is a float, "mode=sconstant" a string, "steps=lAdd,Relu" two strings, "kernel_shape=2,2"
 * a list; "n:" marks a list of one.
 */
typedef struct row {
    const char *domain, *op;
    int32_t version;
    const char *inputs, *attrs;
    uint32_t outputs;
} row_t;

#define MS "com.microsoft"
static const row_t rows[] = {
    {"", "Add", 7, "f2x3x4x5 f2x3x4x5", "", 1},
    {"", "Sub", 7, "f2x3x4x5 f2x3x4x5", "", 1},
    {"", "Mul", 7, "f2x3x4x5 f2x3x4x5", "", 1},
    {"", "Div", 7, "f2x3x4x5 p2x3x4x5", "", 1},
    {"", "Relu", 1, "f2x3x4x5", "", 1},
    {"", "Tanh", 1, "f2x3x4x5", "", 1},
    {"", "Neg", 1, "f2x3x4x5", "", 1},
    {"", "Exp", 1, "f2x3x4x5", "", 1},
    {"", "Log", 1, "p2x3x4x5", "", 1},
    {"", "Sqrt", 1, "p2x3x4x5", "", 1},
    {"", "Reciprocal", 1, "p2x3x4x5", "", 1},
    {"", "Erf", 9, "f2x3x4x5", "", 1},
    {"", "Gelu", 20, "f2x3x4x5", "", 1},
    {"", "Cos", 7, "f2x3x4x5", "", 1},
    {"", "Sin", 7, "f2x3x4x5", "", 1},
    {"weft", "SqrtGrad", 1, "f2x3x4x5 p2x3x4x5", "", 1},
    {"weft", "ReciprocalGrad", 1, "f2x3x4x5 p2x3x4x5", "", 1},
    {"weft", "ErfGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "GeluGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"", "Pow", 7, "p2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "PowGrad", 1, "f2x3x4x5 p2x3x4x5 #1", "", 1},
    {"", "LayerNormalization", 17, "f4x5x3 f3", "axis=2", 3},
    {MS, "LayerNormalizationGrad", 1, "f4x5x3 f4x5x3 f3 f4x5x1 p4x5x1", "axis=2", 3},
    {"weft", "SoftmaxGrad", 1, "f3x4x5 f3x4x5", "axis=1", 1},
    {"weft", "LogSoftmaxGrad", 1, "f3x4x5 f3x4x5", "axis=1", 1},
    {"", "Abs", 1, "f2x3x4x5", "", 1},
    {"", "Sign", 9, "f2x3x4x5", "", 1},
    {"", "Floor", 1, "f2x3x4x5", "", 1},
    {"", "Ceil", 1, "f2x3x4x5", "", 1},
    {"", "Round", 11, "f2x3x4x5", "", 1},
    {"", "Tan", 7, "f2x3x4x5", "", 1},
    {"", "Acos", 7, "f2x3x4x5", "", 1},
    {"", "Asin", 7, "f2x3x4x5", "", 1},
    {"", "Atan", 7, "f2x3x4x5", "", 1},
    {"", "Cosh", 9, "f2x3x4x5", "", 1},
    {"", "Sinh", 9, "f2x3x4x5", "", 1},
    {"", "Acosh", 9, "p2x3x4x5", "", 1},
    {"", "Asinh", 9, "f2x3x4x5", "", 1},
    {"", "Atanh", 9, "f2x3x4x5", "", 1},
    {"", "Elu", 1, "f2x3x4x5", "", 1},
    {"", "Selu", 1, "f2x3x4x5", "", 1},
    {"", "Celu", 12, "f2x3x4x5", "", 1},
    {"", "LeakyRelu", 1, "f2x3x4x5", "", 1},
    {"", "ThresholdedRelu", 10, "f2x3x4x5", "", 1},
    {"", "Shrink", 9, "f2x3x4x5", "", 1},
    {"", "Softplus", 1, "f2x3x4x5", "", 1},
    {"", "Softsign", 1, "f2x3x4x5", "", 1},
    {"", "Mish", 18, "f2x3x4x5", "", 1},
    {"", "Swish", 24, "f2x3x4x5", "", 1},
    {"", "IsInf", 10, "f2x3x4x5", "", 1},
    {"", "BitwiseNot", 18, "m2x3x4x5", "", 1},
    {"weft", "AbsGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "CosGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "SinGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "TanGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "AcosGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "AsinGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "CoshGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "SinhGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "AcoshGrad", 1, "f2x3x4x5 p2x3x4x5", "", 1},
    {"weft", "AsinhGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "AtanhGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "AtanGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "EluGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "SeluGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "CeluGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "LeakyReluGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "ThresholdedReluGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "SoftplusGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "SoftsignGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "MishGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "SwishGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"", "Mod", 10, "f2x3x4x5 p2x3x4x5", "fmod=1", 1},
    {"", "PRelu", 7, "f2x3x4x5 f2x3x4x5", "", 1},
    {"", "Sum", 8, "f2x3x4x5 f2x3x4x5", "", 1},
    {"", "Mean", 8, "f2x3x4x5 f2x3x4x5", "", 1},
    {"", "BitwiseAnd", 18, "m2x3x4x5 m2x3x4x5", "", 1},
    {"", "BitwiseOr", 18, "m2x3x4x5 m2x3x4x5", "", 1},
    {"", "BitwiseXor", 18, "m2x3x4x5 m2x3x4x5", "", 1},
    {"", "BitShift", 11, "m2x3x4x5 m2x3x4x5", "direction=sLEFT", 1},
    {"", "Max", 8, "f2x3x4x5 f2x3x4x5", "", 1},
    {"", "Min", 8, "f2x3x4x5 f2x3x4x5", "", 1},
    {"", "Equal", 7, "b2x3x4x5 b2x3x4x5", "", 1},
    {"", "Less", 7, "f2x3x4x5 f2x3x4x5", "", 1},
    {"", "LessOrEqual", 12, "f2x3x4x5 f2x3x4x5", "", 1},
    {"", "Greater", 7, "f2x3x4x5 f2x3x4x5", "", 1},
    {"", "GreaterOrEqual", 12, "f2x3x4x5 f2x3x4x5", "", 1},
    {"", "And", 7, "b2x3x4x5 b2x3x4x5", "", 1},
    {"", "Or", 7, "b2x3x4x5 b2x3x4x5", "", 1},
    {"", "Xor", 7, "b2x3x4x5 b2x3x4x5", "", 1},
    {"", "Not", 1, "b2x3x4x5", "", 1},
    {"", "IsNaN", 9, "f2x3x4x5", "", 1},
    {"", "Where", 9, "b2x3x4x5 f2x3x4x5 f2x3x4x5", "", 1},
    {"", "Cast", 6, "f2x3x4x5", "to=11", 1},
    {"", "CastLike", 15, "f2x3x4x5 b2x3x4x5", "", 1},
    {"", "Shape", 15, "f2x3x4x5", "", 1},
    {"", "Size", 1, "f2x3x4x5", "", 1},
    {"", "Gather", 1, "f4x5x3 i2", "axis=1", 1},
    {"weft", "GatherGrad", 1, "f4x2x3 i2", "axis=1 input_shape=4,5,3", 1},
    {"", "GatherElements", 11, "f4x5x3 i4x2x3", "axis=1", 1},
    {"", "Slice", 1, "f4x5x3", "starts=0,1,1 ends=4,4,-1", 1},
    {"", "Slice", 10, "f4x5x3 =1 =4 =1 =2", "", 1},
    {"weft", "SliceGrad", 1, "f4x2x3", "starts=0,1,0 steps=1,2,1 input_shape=4,5,3", 1},
    {"", "Split", 2, "f4x6x3", "axis=1", 3},
    {"", "Split", 13, "f4x6x3 =2,4", "axis=1", 2},
    {"", "Split", 18, "f4x5x3", "axis=1", 2},
    {"", "Concat", 1, "f4x2x3 f4x5x3", "axis=1", 1},
    {"", "Concat", 4, "f4x2x3 f4x5x3", "axis=1", 1},
    {"", "Expand", 8, "f4x1x3 =4,5,3", "", 1},
    {"", "Trilu", 14, "f4x5x3", "", 1},
    {"", "Sigmoid", 1, "f2x3x4x5", "", 1},
    {"", "HardSigmoid", 1, "f2x3x4x5", "alpha=f0.9", 1},
    {"", "HardSwish", 14, "f2x3x4x5", "", 1},
    {"", "Clip", 1, "f2x3x4x5", "min=f0 max=f0.5", 1},
    {"", "Clip", 11, "f2x3x4x5 - #1", "", 1},
    {"weft", "SigmoidGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "HardSigmoidGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "HardSwishGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "ClipGrad", 1, "f2x3x4x5 f2x3x4x5 - #1", "", 1},
    {"", "ReduceSum", 1, "f2x3x4x5", "axes=2,3", 1},
    {"", "ReduceSum", 13, "f2x3x4x5 =1", "", 1},
    {"", "ReduceMean", 1, "f2x3x4x5", "axes=2,3", 1},
    {"", "ReduceMean", 18, "f2x3x4x5 =1", "", 1},
    {"", "ReduceMax", 1, "p2x3x4x5", "axes=2,3", 1},
    {"", "ReduceMax", 18, "p2x3x4x5 =1", "", 1},
    {"", "ReduceMin", 1, "p2x3x4x5", "axes=2,3", 1},
    {"", "ReduceMin", 18, "p2x3x4x5 =1", "", 1},
    {"", "ReduceProd", 1, "p2x3x4x5", "axes=2,3", 1},
    {"", "ReduceProd", 18, "p2x3x4x5 =1", "", 1},
    {"", "ReduceSumSquare", 1, "p2x3x4x5", "axes=2,3", 1},
    {"", "ReduceSumSquare", 18, "p2x3x4x5 =1", "", 1},
    {"", "ReduceL1", 1, "p2x3x4x5", "axes=2,3", 1},
    {"", "ReduceL1", 18, "p2x3x4x5 =1", "", 1},
    {"", "ReduceL2", 1, "p2x3x4x5", "axes=2,3", 1},
    {"", "ReduceL2", 18, "p2x3x4x5 =1", "", 1},
    {"", "ReduceLogSum", 1, "p2x3x4x5", "axes=2,3", 1},
    {"", "ReduceLogSum", 18, "p2x3x4x5 =1", "", 1},
    {"", "ReduceLogSumExp", 1, "p2x3x4x5", "axes=2,3", 1},
    {"", "ReduceLogSumExp", 18, "p2x3x4x5 =1", "", 1},
    {"weft", "BatchNormTraining", 1, "f4x3x4x5 f3 f3 f3 f3", "", 3},
    {"weft", "BatchNormGrad", 1, "f4x3x4x5 f4x3x4x5 f3 f3 p3", "", 3},
    {"weft", "MovingAverage", 1, "f4x5 f4x5", "momentum=f0.75", 1},
    {"", "CumSum", 11, "f4x5x3 =1", "", 1},
    {"", "GatherND", 11, "f4x5x3 i2x2", "", 1},
    {"", "Tile", 6, "f4x5x3 =2,1,3", "", 1},
    {"", "DepthToSpace", 1, "f2x8x3x5", "blocksize=2 mode=sCRD", 1},
    {"", "SpaceToDepth", 1, "f2x2x6x10", "blocksize=2", 1},
    {"weft", "DepthToSpaceGrad", 1, "f2x2x6x10 f2x8x3x5", "blocksize=2", 1},
    {"weft", "SpaceToDepthGrad", 1, "f2x8x3x5 f2x2x6x10", "blocksize=2", 1},
    {"weft", "ResizeGrad", 1, "f2x2x6x10 f2x2x3x5 - - =2,2,6,10", "mode=slinear", 1},
    {"", "Resize", 11, "f2x2x3x5 - - =2,2,6,10", "mode=slinear", 1},
    {"", "Resize", 18, "f2x2x3x5 - - =2,2,6,10", "mode=slinear", 1},
    {"", "EyeLike", 9, "f4x5", "", 1},
    {"", "Gemm", 11, "f3x4 f4x5 f5", "", 1},
    {"", "MatMul", 1, "f2x3x4 f4x5", "", 1},
    {MS, "FusedMatMul", 1, "f2x3x4 f2x3x5", "transA=1", 1},
    {"", "Softmax", 1, "f3x4x5x2", "axis=2", 1},
    {"", "Softmax", 13, "f3x4x5", "axis=1", 1},
    {"", "LogSoftmax", 1, "f3x4x5x2", "axis=2", 1},
    {"", "LogSoftmax", 13, "f3x4x5", "axis=1", 1},
    {"", "ConvTranspose", 1, "f4x3x6x5 f3x2x3x3", "pads=1,1,1,1", 1},
    {"", "Conv", 1, "f4x3x6x5 f2x3x3x3", "pads=1,1,1,1", 1},
    {MS, "ConvGrad", 1, "f4x2x6x5 f4x3x6x5 f2x3x3x3", "pads=1,1,1,1", 3},
    {"", "Dropout", 7, "f4x5", "", 1},
    {"", "Dropout", 12, "f4x5", "", 1},
    {"weft", "DropoutMask", 1, "f4x5 i1 #1", "ratio=f0 salt=1", 2},
    {"weft", "DropoutGrad", 1, "f4x5 m4x5", "ratio=f0.5", 1},
    {"", "SoftmaxCrossEntropyLoss", 12, "f4x5 i4", "", 2},
    {"weft", "SoftmaxCrossEntropyLoss", 1, "f4x5 i4", "label_smoothing=f0.1", 2},
    {"", "NegativeLogLikelihoodLoss", 12, "f4x5 i4", "", 1},
    {"weft", "NegativeLogLikelihoodLossGrad", 1, "#1 f4x5 i4", "", 1},
    {MS, "SoftmaxCrossEntropyLossGrad", 1, "#1 f4x5 i4", "", 1},
    {"", "MaxPool", 10, "f4x3x6x6", "kernel_shape=2,2 strides=2,2", 1},
    {"", "AveragePool", 10, "f4x3x6x6", "kernel_shape=3,2 strides=1,2", 1},
    {"", "GlobalAveragePool", 1, "f4x3x6x6", "", 1},
    {"weft", "MaxPoolMask", 1, "f4x3x6x6", "kernel_shape=2,2 strides=2,2", 2},
    {"weft", "MaxPoolGrad", 1, "f4x3x3x3 m4x3x3x3",
     "kernel_shape=2,2 strides=2,2 input_shape=4,3,6,6", 1},
    {"weft", "AveragePoolGrad", 1, "f4x3x3x3", "kernel_shape=2,2 strides=2,2 input_shape=4,3,6,6",
     1},
    {"", "Reshape", 5, "f2x3x4x5 =2,60", "", 1},
    {"", "Flatten", 1, "f2x3x4x5", "", 1},
    {"", "Identity", 1, "f2x3x4", "", 1},
    {"", "Squeeze", 1, "f2x1x4", "axes=n:1", 1},
    {"", "Squeeze", 13, "f2x1x4 =1", "", 1},
    {"", "Unsqueeze", 1, "f2x4", "axes=n:1", 1},
    {"", "Unsqueeze", 13, "f2x4 =1", "", 1},
    {"", "Pad", 2, "f2x3x4x5", "pads=0,0,1,1,0,0,1,0", 1},
    {"", "Transpose", 1, "f2x3x4", "perm=2,0,1", 1},
    {MS, "ReluGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "TanhGrad", 1, "f2x3x4x5 f2x3x4x5", "", 1},
    {"weft", "PadGrad", 1, "f2x3x4x5", "pads=0,0,1,1,0,0,1,0", 1},
    {"weft", "SumTo", 1, "f2x3x4", "shape=3,1", 1},
    {"weft", "SGD", 1, "f4x5 f4x5 #1", "weight_decay=f0.1", 1},
    {"weft", "Momentum", 1, "f4x5 f4x5 f4x5 #1", "", 2},
    {"weft", "Adagrad", 1, "f4x5 f4x5 p4x5 #1 #1", "", 2},
    {"weft", "Adam", 1, "f4x5 f4x5 f4x5 p4x5 #1 #1", "", 3},
    {"weft", "AdamW", 1, "f4x5 f4x5 f4x5 p4x5 #1 #1", "weight_decay=f0.1", 3},
    {"weft", "Lamb", 1, "f4x5 f4x5 f4x5 p4x5 #1 #1", "weight_decay=f0.1", 3},
    {"weft", "LearningRate", 1, "#1 #1", "warmup=4", 1},
    {"weft", "Pack", 1, "f4x5 f2x3", "blocks=2", 1},
    {"weft", "Unpack", 1, "f26", "blocks=2 shapes=2,4,5,1,6", 2},
    {"weft", "Fused", 1, "f2x3x4x5 f2x3x4x5", "steps=lAdd,Relu operands=0,1,2,-1 results=n:1", 1},
    {"weft", "TreeFold", 1, "f4x5 f4x5 f4x5", "", 1},
    {"weft", "SquareSum", 1, "i24 f48 f16", "", 1},
};

static uint32_t read_list(const char *text, int64_t *out)
{
    uint32_t count = 0;
    while (count < WEFT_MAX_DIMS) {
        char *end;
        out[count++] = strtoll(text, &end, 10);
        if (*end != ',' && *end != 'x') {
            break;
        }
        text = end + 1;
    }
    out[count] = -2;
    return count;
}

static void add_input(op_case_t *c, const char *text)
{
    int64_t dims[2 * WEFT_MAX_DIMS + 1];
    uint32_t at = c->input_count, count = read_list(text + 1, dims);
    if (text[0] == '-') {
        case_absent_input(c);
        return;
    }
    if (text[0] == '#') {
        *case_input(c, SCALAR) = 1.0f;
        return;
    }
    if (text[0] == '=') {
        int64_t *list = case_input_typed(c, WEFT_DTYPE_I64, WEFT_LAYOUT_PLAIN, DIMS(count));
        memcpy(list, dims, count * sizeof(*list));
        c->inputs[at].data = list;
        return;
    }
    weft_dtype_t dtype = text[0] == 'i'   ? WEFT_DTYPE_I64
                         : text[0] == 'b' ? WEFT_DTYPE_BOOL
                         : text[0] == 'm' ? WEFT_DTYPE_U8
                                          : WEFT_DTYPE_F32;
    void *data = case_input_typed(c, dtype, WEFT_LAYOUT_PLAIN, dims);
    int64_t elems = case_count(&c->inputs[at]);
    if (dtype == WEFT_DTYPE_F32) {
        random_fill(data, elems, text[0] == 'p' ? 0.5f : -1.0f, 1.0f);
    } else {
        memset(data, 0, (size_t)elems * weft_dtype_size_bytes(dtype));
    }
    for (int64_t i = 0; (text[0] == 'm' || text[0] == 'b') && i < elems; i++) {
        ((uint8_t *)data)[i] = (uint8_t)random_below(2);
    }
}

static void add_attr(op_case_t *c, const char *text, char **names)
{
    int64_t list[2 * WEFT_MAX_DIMS + 1];
    char *name = names[c->attr_count] = strdup(text), *value = strchr(name, '=');
    assert_non_null(value);
    *value++ = '\0';
    if (*value == 's') {
        case_string(c, name, value + 1);
    } else if (*value == 'l') {
        static const char *words[4];
        size_t count = 0;
        for (char *word = strtok(value + 1, ","); word != NULL; word = strtok(NULL, ",")) {
            assert_true(count < sizeof(words) / sizeof(words[0]));
            words[count++] = word;
        }
        c->attrs[c->attr_count++] = (weft_attr_t){
            .name = name, .type = WEFT_ATTR_TYPE_STRINGS, .count = count, .strings = words};
    } else if (*value == 'f') {
        case_float(c, name, strtof(value + 1, NULL));
    } else if (strchr(value, ',') != NULL || *value == 'n') {
        read_list(*value == 'n' ? value + 2 : value, list);
        case_ints(c, name, list);
    } else {
        case_int(c, name, atoi(value));
    }
}

typedef struct subject {
    op_case_t c;
    char *names[CASE_ATTRS];
    const weft_op_def_t *def;
    weft_op_facts_t facts;
} subject_t;

static void build(const row_t *row, subject_t *s)
{
    char text[256];
    memset(s, 0, sizeof(*s));
    s->c = case_make(row->domain, row->op, row->version);
    snprintf(text, sizeof(text), "%s", row->inputs);
    for (char *rest = text, *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
        add_input(&s->c, word);
    }
    snprintf(text, sizeof(text), "%s", row->attrs);
    for (char *rest = text, *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
        add_attr(&s->c, word, s->names);
    }
    s->def = case_def(&s->c);
    s->facts = wefti_op_facts(s->def);
    if (case_infer(&s->c, row->outputs, WEFT_LAYOUT_PLAIN) != WEFT_OK) {
        fail_msg("%s: %s", row->op, weft_last_error());
    }
}

static void drop(subject_t *s)
{
    case_free(&s->c);
    for (uint32_t i = 0; i < CASE_ATTRS; i++) {
        free(s->names[i]);
    }
}

static size_t bytes_of(const weft_tensor_desc_t *desc)
{
    return (size_t)case_count(desc) * weft_dtype_size_bytes(desc->dtype);
}

static void *copy_of(const void *data, size_t bytes)
{
    void *copy = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, data, bytes);
    return copy;
}

/* The results so far; the case's outputs are overwritten by the next run. */
static void run(subject_t *s)
{
    weft_status_t status = case_run_isa(&s->c, wefti_isa_detect());
    if (status != WEFT_OK) {
        fail_msg("%s: %s", s->c.op, weft_last_error());
    }
}

static void take_outputs(subject_t *s, void **out)
{
    run(s);
    for (uint32_t i = 0; i < s->c.output_count; i++) {
        out[i] = copy_of(s->c.out[i], bytes_of(&s->c.outputs[i]));
    }
}

static void free_all(void **list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        free(list[i]);
    }
}

/* The same permutation of all tensors permutes the results. */
static void check_elementwise(subject_t *s)
{
    void *before[CASE_TENSORS];
    int64_t count = case_count(&s->c.outputs[0]);
    int64_t *order = calloc((size_t)count, sizeof(*order));
    take_outputs(s, before);
    for (int64_t i = 0; i < count; i++) {
        order[i] = i;
    }
    for (int64_t i = count; i-- > 1;) {
        int64_t j = random_below((uint32_t)i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    for (uint32_t k = 0; k < s->c.input_count; k++) {
        size_t elem = weft_dtype_size_bytes(s->c.inputs[k].dtype);
        if (s->c.in[k] == NULL || case_count(&s->c.inputs[k]) != count) {
            continue;
        }
        uint8_t *old = copy_of(s->c.in[k], bytes_of(&s->c.inputs[k]));
        for (int64_t i = 0; i < count; i++) {
            memcpy((uint8_t *)s->c.in[k] + (size_t)i * elem, old + (size_t)order[i] * elem, elem);
        }
        free(old);
    }
    run(s);
    for (uint32_t k = 0; k < s->c.output_count; k++) {
        size_t elem = weft_dtype_size_bytes(s->c.outputs[k].dtype);
        assert_int_equal(case_count(&s->c.outputs[k]), count);
        for (int64_t i = 0; i < count; i++) {
            assert_memory_equal((uint8_t *)s->c.out[k] + (size_t)i * elem,
                                (uint8_t *)before[k] + (size_t)order[i] * elem, elem);
        }
    }
    free_all(before, s->c.output_count);
    free(order);
}

/* Scaling by powers of two is exact, so that the bits of the results tell. */
static void check_linear(subject_t *s, uint32_t input)
{
    static const float factors[] = {2.0f, -0.5f};
    for (size_t f = 0; f < WEFTI_COUNT(factors); f++) {
        void *before[CASE_TENSORS];
        float *x = s->c.in[input];
        take_outputs(s, before);
        for (int64_t i = 0; i < case_count(&s->c.inputs[input]); i++) {
            x[i] *= factors[f];
        }
        run(s);
        for (uint32_t k = 0; k < s->c.output_count; k++) {
            const float *y = s->c.out[k], *old = before[k];
            for (int64_t i = 0; i < case_count(&s->c.outputs[k]); i++) {
                bool undefined = y[i] != y[i] && old[i] != old[i];
                assert_true(undefined || y[i] == factors[f] * old[i]);
            }
        }
        free_all(before, s->c.output_count);
    }
}

static void check_commutative(subject_t *s)
{
    void *before[CASE_TENSORS], *first = s->c.in[0];
    take_outputs(s, before);
    s->c.in[0] = s->c.in[1];
    s->c.in[1] = first;
    run(s);
    assert_memory_equal(before[0], s->c.out[0], bytes_of(&s->c.outputs[0]));
    free_all(before, s->c.output_count);
}

/* The last inputs as one more: the first half of input 1, its second half, the rest. */
static void check_accumulates(subject_t *s)
{
    void *before[CASE_TENSORS];
    int64_t half = s->c.inputs[1].dims[0] / 3; /* 16 of 48 elements */
    take_outputs(s, before);
    uint32_t more = s->c.input_count++;
    s->c.inputs[more] = s->c.inputs[1];
    s->c.inputs[1].dims[0] = half;
    s->c.inputs[more].dims[0] -= half;
    s->c.in[more] = copy_of((float *)s->c.in[1] + half, bytes_of(&s->c.inputs[more]));
    run(s);
    assert_memory_equal(before[0], s->c.out[0], bytes_of(&s->c.outputs[0]));
    free_all(before, s->c.output_count);
}

/* Rows first to first + count of dimension dim; desc gets the shape. */
static void *slice(const void *data, weft_tensor_desc_t *desc, uint32_t dim, int64_t first,
                   int64_t count)
{
    size_t elem = weft_dtype_size_bytes(desc->dtype), inner = elem, outer = 1;
    for (uint32_t d = 0; d < desc->rank; d++) {
        *(d < dim ? &outer : &inner) *= d == dim ? 1 : (size_t)desc->dims[d];
    }
    uint8_t *out = malloc(outer * inner * (size_t)count + 1);
    assert_non_null(out);
    for (size_t o = 0; o < outer; o++) {
        const uint8_t *from = (const uint8_t *)data + o * inner * (size_t)desc->dims[dim];
        memcpy(out + o * inner * (size_t)count, from + (size_t)first * inner,
               (size_t)count * inner);
    }
    desc->dims[dim] = count;
    return out;
}

/* Half of the samples along a dimension that is not mixed give half of the results. */
static void check_samples(const row_t *row, uint32_t dim)
{
    subject_t whole, part;
    weft_tensor_desc_t expected;
    build(row, &whole);
    build(row, &part);
    int64_t samples = whole.c.inputs[0].dims[dim], count = samples / 2;
    run(&whole);
    for (uint32_t k = 0; k < whole.c.input_count; k++) {
        bool sliced = whole.c.inputs[k].rank > dim && whole.c.inputs[k].dims[dim] == samples;
        weft_tensor_desc_t type = whole.c.inputs[k];
        free(part.c.in[k]);
        part.c.in[k] = sliced ? slice(whole.c.in[k], &type, dim, samples - count, count)
                              : copy_of(whole.c.in[k], bytes_of(&type));
        part.c.inputs[k] = type;
    }
    free_all(part.c.out, part.c.output_count);
    memset(part.c.out, 0, sizeof(part.c.out));
    part.c.output_count = 0;
    assert_int_equal(case_infer(&part.c, row->outputs, WEFT_LAYOUT_PLAIN), WEFT_OK);
    run(&part);
    for (uint32_t k = 0; k < part.c.output_count; k++) {
        expected = whole.c.outputs[k];
        assert_int_equal(expected.dims[dim], samples);
        uint8_t *rows_of = slice(whole.c.out[k], &expected, dim, samples - count, count);
        assert_int_equal(bytes_of(&expected), bytes_of(&part.c.outputs[k]));
        assert_memory_equal(rows_of, part.c.out[k], bytes_of(&expected));
        free(rows_of);
    }
    drop(&whole);
    drop(&part);
}

static void check_mixing(const row_t *row, subject_t *s)
{
    const weft_attr_t *attr = NULL;
    for (uint32_t i = 0; i < s->c.attr_count; i++) {
        attr = strcmp(s->c.attrs[i].name, "axis") == 0 ? &s->c.attrs[i] : attr;
    }
    int64_t axis = attr != NULL ? attr->i : -1;
    for (uint32_t dim = 0; dim < s->c.inputs[0].rank; dim++) {
        bool mixed = s->facts.mixing == WEFT_MIXING_AXIS        ? axis == dim
                     : s->facts.mixing == WEFT_MIXING_FROM_AXIS ? axis <= dim
                     : s->facts.mixing == WEFT_MIXING_FROM_1    ? dim >= 1
                     : s->facts.mixing == WEFT_MIXING_FROM_2    ? dim >= 2
                                                                : false;
        if (!mixed) {
            check_samples(row, dim);
        }
    }
}

static void check_evaluation(subject_t *s)
{
    op_case_t c = s->c;
    run(s);
    for (uint32_t i = 1; i < 3 && (s->facts.flags & WEFT_FACT_STATISTICS) != 0; i++) {
        memcpy(s->c.in[i + 2], s->c.out[i], bytes_of(&s->c.outputs[i]));
    }
    c.domain = s->facts.evaluation.domain;
    c.op = s->facts.evaluation.name;
    c.version = INT32_MAX;
    c.output_count = 1;
    c.input_count =
        c.input_count < case_def(&c)->inputs_max ? c.input_count : case_def(&c)->inputs_max;
    c.attr_count = case_def(&c)->attr_count == 0 ? 0 : c.attr_count;
    c.out[0] = malloc(bytes_of(&c.outputs[0]));
    assert_int_equal(case_run_isa(&c, 0), WEFT_OK);
    assert_memory_equal(c.out[0], s->c.out[0], bytes_of(&c.outputs[0]));
    free(c.out[0]);
}

/* dims of plain data as channels-last; both have rank 4. */
static void permute(float *data, weft_tensor_desc_t *desc, weft_layout_t layout)
{
    float *old = copy_of(data, bytes_of(desc));
    weft_tensor_desc_t from = *desc;
    desc->layout = layout;
    for (int64_t n = 0; n < desc->dims[0]; n++) {
        for (int64_t c = 0; c < desc->dims[1]; c++) {
            for (int64_t h = 0; h < desc->dims[2]; h++) {
                for (int64_t w = 0; w < desc->dims[3]; w++) {
                    data[offset4(desc, n, c, h, w)] = old[offset4(&from, n, c, h, w)];
                }
            }
        }
    }
    free(old);
}

static bool turns(const weft_tensor_desc_t *desc)
{
    return desc->rank == 4 && desc->dtype == WEFT_DTYPE_F32;
}

/* Every tensor that may be channels-last is; the results are the same. */
static void check_layout(subject_t *s)
{
    void *before[CASE_TENSORS];
    bool any = false;
    take_outputs(s, before);
    for (uint32_t k = 0; k < s->c.input_count; k++) {
        any |= (s->facts.layout.inputs >> k & 1) != 0 && s->c.inputs[k].rank == 4;
        if ((s->facts.layout.inputs >> k & 1) == 0) {
            continue;
        }
        if (turns(&s->c.inputs[k])) {
            permute(s->c.in[k], &s->c.inputs[k], WEFT_LAYOUT_CHANNELS_LAST);
        } else if (s->c.inputs[k].rank == 4) { /* masks are of the tests' making: all equal */
            memset(s->c.in[k], 0, bytes_of(&s->c.inputs[k]));
            s->c.inputs[k].layout = WEFT_LAYOUT_CHANNELS_LAST;
        }
    }
    for (uint32_t k = 0; k < s->c.output_count; k++) {
        bool last = (s->facts.layout.outputs >> k & 1) != 0 && s->c.outputs[k].rank == 4;
        s->c.outputs[k].layout = last ? WEFT_LAYOUT_CHANNELS_LAST : WEFT_LAYOUT_PLAIN;
    }
    run(s);
    assert_true(any);
    for (uint32_t k = 0; k < s->c.output_count && s->c.inputs[1].dtype != WEFT_DTYPE_U8; k++) {
        if (!turns(&s->c.outputs[k]) && s->c.outputs[k].dtype != WEFT_DTYPE_F32) {
            continue;
        }
        if (s->c.outputs[k].layout == WEFT_LAYOUT_CHANNELS_LAST) {
            permute(s->c.out[k], &s->c.outputs[k], WEFT_LAYOUT_PLAIN);
        }
        const float *y = s->c.out[k], *old = before[k];
        for (int64_t i = 0; i < case_count(&s->c.outputs[k]); i++) {
            assert_close((double)y[i], (double)old[i], 1e-5, s->c.op, i);
        }
    }
    free_all(before, s->c.output_count);
}

#define EACH(condition, check)                                                                     \
    if (condition) {                                                                               \
        subject_t s;                                                                               \
        build(row, &s);                                                                            \
        check;                                                                                     \
        drop(&s);                                                                                  \
    }

static void check_row(const row_t *row)
{
    subject_t first;
    build(row, &first);
    const weft_op_facts_t facts = first.facts;
    drop(&first);
    EACH((facts.flags & WEFT_FACT_ELEMENTWISE) != 0, check_elementwise(&s))
    EACH((facts.flags & WEFT_FACT_COMMUTATIVE) != 0, check_commutative(&s))
    EACH((facts.flags & WEFT_FACT_ACCUMULATES) != 0, check_accumulates(&s))
    EACH((facts.flags & (WEFT_FACT_VIEW | WEFT_FACT_DROPOUT)) != 0, run(&s);
         assert_memory_equal(s.c.in[0], s.c.out[0], bytes_of(&s.c.outputs[0])))
    EACH((facts.flags & WEFT_FACT_LOSS) != 0, assert_int_equal(s.c.outputs[0].rank, 0))
    EACH(facts.mixing != WEFT_MIXING_UNKNOWN, check_mixing(row, &s))
    EACH(facts.evaluation.name != NULL, check_evaluation(&s))
    EACH(facts.layout.inputs != 0, check_layout(&s))
    for (uint32_t i = 0; i < 32; i++) {
        EACH((facts.linear_inputs >> i & 1) != 0, check_linear(&s, i))
    }
}

static void test_kernels_have_the_declared_facts(void **state)
{
    (void)state;
    for (size_t i = 0; i < WEFTI_COUNT(rows); i++) {
        check_row(&rows[i]);
    }
}

static bool exists(const char *domain, const char *name)
{
    return weft_registry_find_op(case_registry(), domain, name, INT32_MAX) != NULL;
}

/* Is there a row for the definition? Operators of one name may share facts and a row. */
static bool has_row(const weft_op_def_t *def)
{
    for (size_t i = 0; i < WEFTI_COUNT(rows); i++) {
        const weft_op_def_t *tested =
            weft_registry_find_op(case_registry(), rows[i].domain, rows[i].op, rows[i].version);
        if (wefti_op_same(tested, def)) {
            weft_op_facts_t a = wefti_op_facts(tested), b = wefti_op_facts(def);
            if (a.flags == b.flags && a.linear_inputs == b.linear_inputs && a.mixing == b.mixing &&
                a.evaluation.name == b.evaluation.name &&
                memcmp(&a.layout, &b.layout, sizeof(a.layout)) == 0) {
                return true;
            }
        }
    }
    return false;
}

static int check_definition(const weft_op_def_t *def, void *user)
{
    const weft_op_facts_t facts = wefti_op_facts(def);
    (void)user;
    if (facts.result_grad.name != NULL) {
        assert_true(exists(facts.result_grad.domain, facts.result_grad.name));
    }
    if (facts.evaluation.name != NULL) {
        assert_true(exists(facts.evaluation.domain, facts.evaluation.name));
    }
    if (facts.imported_as != NULL) {
        assert_true(facts.imported_as[0] == '\0' || exists("weft", facts.imported_as));
        assert_true((def->effects & WEFT_EFFECT_COMMUNICATES) != 0 && facts.collective != 0);
    }
    if (facts.half != WEFT_HALF_NONE) {
        const char *half = facts.half == WEFT_HALF_START ? "Start" : "Wait";
        const char *whole = weft_collective_name((weft_collective_t)facts.collective);
        assert_int_equal(strncmp(def->name, whole, strlen(whole)), 0);
        assert_string_equal(def->name + strlen(whole), half);
        assert_true(exists("weft", whole));
    } else if (facts.collective != 0 && facts.imported_as == NULL &&
               facts.gradient != WEFT_GRADIENT_TRANSFER) { /* in plans it is a Broadcast */
        assert_string_equal(def->name, weft_collective_name((weft_collective_t)facts.collective));
    }
    bool values = facts.flags != 0 || facts.linear_inputs != 0 || facts.mixing != 0 ||
                  facts.layout.inputs != 0 || facts.evaluation.name != NULL;
    bool kernel = weft_registry_find_kernel(case_registry(), def->domain, def->name,
                                            def->since_version) != NULL;
    if (values && kernel && !has_row(def)) {
        fail_msg("%s::%s version %d has facts, but no row tests them", def->domain, def->name,
                 def->since_version);
    }
    return 0;
}

static void test_every_definition_with_facts_is_tested(void **state)
{
    (void)state;
    weft_op_registry_visit(case_registry(), check_definition, NULL);
}

/* Definitions that were compiled with another header. */
static void test_facts_of_older_and_newer_headers(void **state)
{
    weft_registry_t *registry;
    struct {
        weft_op_facts_t facts;
        uint64_t later;
    } newer = {.facts = {.struct_size = sizeof(newer), .flags = WEFT_FACT_ELEMENTWISE}};
    weft_op_facts_t older = {.struct_size = offsetof(weft_op_facts_t, shape_inputs),
                             .flags = WEFT_FACT_VIEW,
                             .shape_inputs = 7u};
    weft_op_def_t defs[] = {
        {.domain = "test", .name = "Older", .facts = &older},
        {.domain = "test", .name = "Newer", .facts = &newer.facts},
        {.domain = "test", .name = "None"},
        {.domain = "test", .name = "Later", .facts = &newer.facts},
    };
    (void)state;
    assert_int_equal(weft_registry_create(NULL, &registry), WEFT_OK);
    for (size_t i = 0; i < WEFTI_COUNT(defs); i++) {
        defs[i].since_version = 1;
        defs[i].inputs_max = defs[i].outputs_max = 1;
        defs[i].infer = wefti_infer_same;
        newer.later = i == 3;
        assert_int_equal(weft_registry_add_op(registry, &defs[i]),
                         i == 3 ? WEFT_ERR_UNSUPPORTED : WEFT_OK);
    }
    assert_int_equal(wefti_op_facts(&defs[0]).flags, WEFT_FACT_VIEW);
    assert_int_equal(wefti_op_facts(&defs[0]).shape_inputs, 0); /* beyond its struct_size */
    assert_int_equal(wefti_op_facts(&defs[1]).flags, WEFT_FACT_ELEMENTWISE);
    assert_int_equal(wefti_op_facts(&defs[2]).flags, 0);
    weft_op_facts_t unnamed = {.struct_size = sizeof(unnamed), .gradient = WEFT_GRADIENT_OF_RESULT};
    defs[3].facts = &unnamed;
    assert_int_equal(weft_registry_add_op(registry, &defs[3]), WEFT_ERR_INVALID_ARGUMENT);
    weft_registry_destroy(registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels_have_the_declared_facts),
        cmocka_unit_test(test_every_definition_with_facts_is_tested),
        cmocka_unit_test(test_facts_of_older_and_newer_headers),
    };
    random_seed(14);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
