/* SPDX-License-Identifier: Apache-2.0 */
/* What the names of tensors tell: how exporters and modules name parameters, buffers and numbers. */
#include "graph/onnx/internal.h"

#include <string.h>

static bool is_one_of(const char *text, const char *const *words)
{
    while (*words != NULL && strcmp(*words, text) != 0) {
        words++;
    }
    return *words != NULL;
}

static bool ends_in_number(const char *name, const char *prefix)
{
    size_t length = strlen(prefix);
    return strncmp(name, prefix, length) == 0 && name[length] != '\0' &&
           strspn(name + length, "0123456789") == strlen(name + length);
}

bool wefti_onnx_is_made_up_name(const char *name)
{
    return name[0] == '/' || strncmp(name, "onnx::", 6) == 0 ||
           strncmp(name, "Constant_", 9) == 0 || strncmp(name, "const_fold_opt__", 16) == 0 ||
           ends_in_number(name, "val_") || ends_in_number(name, "_tensor_constant") ||
           ends_in_number(name, "lifted_tensor_") || ends_in_number(name, "c_lifted_tensor_");
}

bool wefti_onnx_is_module_path(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
    const char *last = strrchr(name, '.');
    for (const char *at = name; last != NULL;) {
        size_t length = strspn(at, letters);
        if (length == 0 || (at[length] != '.' && at[length] != '\0')) {
            return false;
        }
        if (at[length] == '\0') {
            break;
        }
        at += length + 1;
    }
    return last != NULL && strspn(last + 1, "0123456789") < strlen(last + 1);
}

const char *wefti_onnx_last_part(const char *name)
{
    const char *dot = strrchr(name, '.'), *slash = strrchr(name, '/');
    return dot > slash ? dot + 1 : slash != NULL ? slash + 1 : name;
}

bool wefti_onnx_is_parameter_name(const char *name)
{
    static const char *const names[] = {"gamma", "beta",        "alpha",       "w", "W",
                                        "b",     "layer_scale", "logit_scale", NULL};
    static const char *const parts[] = {"weight", "bias", "token", "embed", NULL};
    const char *last = wefti_onnx_last_part(name);
    for (const char *const *part = parts; *part != NULL; part++) {
        if (strstr(last, *part) != NULL) {
            return true;
        }
    }
    return is_one_of(last, names) || ends_in_number(last, "w") || ends_in_number(last, "b") ||
           ends_in_number(last, "W") || strncmp(last, "w_", 2) == 0 || strncmp(last, "b_", 2) == 0;
}

bool wefti_onnx_is_buffer_name(const char *name)
{
    static const char *const names[] = {"running_mean", "running_var",     "inv_freq",
                                        "moving_mean",  "moving_variance", NULL};
    return is_one_of(wefti_onnx_last_part(name), names);
}

bool wefti_onnx_is_constant_name(const char *name)
{
    static const char *const parts[] = {"mask", "buffer", "const", "fixed", NULL};
    const char *last = wefti_onnx_last_part(name);
    for (const char *const *part = parts; *part != NULL; part++) {
        if (strstr(last, *part) != NULL) {
            return true;
        }
    }
    return false;
}
