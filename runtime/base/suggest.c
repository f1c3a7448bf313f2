/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/suggest.h"

#include <string.h>

#define MAX_LENGTH 63u

static char fold(char letter)
{
    if (letter >= 'A' && letter <= 'Z') {
        return (char)(letter - 'A' + 'a');
    }
    return letter == '_' ? '-' : letter;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Optimal string alignment: three rows of the table of distances between prefixes. */
size_t wefti_edit_distance(const char *a, const char *b)
{
    size_t table[3][MAX_LENGTH + 1];
    size_t a_length = strnlen(a, MAX_LENGTH);
    size_t b_length = strnlen(b, MAX_LENGTH);
    for (size_t j = 0; j <= b_length; j++) {
        table[0][j] = j;
    }
    for (size_t i = 1; i <= a_length; i++) {
        size_t *row = table[i % 3];
        const size_t *above = table[(i - 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t differs = fold(a[i - 1]) != fold(b[j - 1]);
            row[j] = smaller(smaller(above[j], row[j - 1]) + 1, above[j - 1] + differs);
            if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) &&
                fold(a[i - 2]) == fold(b[j - 1])) {
                row[j] = smaller(row[j], table[(i - 2) % 3][j - 2] + 1);
            }
        }
    }
    return table[a_length % 3][b_length];
}

bool wefti_same_name(const char *a, const char *b)
{
    for (;; a++, b++) {
        a += strspn(a, "_-");
        b += strspn(b, "_-");
        if (fold(*a) != fold(*b)) {
            return false;
        }
        if (*a == '\0') {
            return true;
        }
    }
}

/* One edit in short words, two in others: more is another word. */
void wefti_suggestion_offer(wefti_suggestion_t *suggestion, const char *name)
{
    size_t length = strnlen(suggestion->word, MAX_LENGTH);
    size_t most = length < 6 ? 1 : 2;
    size_t distance = wefti_edit_distance(suggestion->word, name);
    /* A word of which every character is replaced resembles nothing. */
    if (distance <= most && distance < length &&
        (suggestion->best == NULL || distance < suggestion->distance)) {
        suggestion->best = name;
        suggestion->distance = distance;
    }
}
