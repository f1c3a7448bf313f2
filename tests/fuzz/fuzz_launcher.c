/* SPDX-License-Identifier: Apache-2.0 */
/* Frames between launcher and agents. The first byte: whether the hello has been seen. */
#include <string.h>
#include <unistd.h>

#include "tests/support/support_fuzz.h"
#include "tools/launch/frames.h"

/* As launcher and agent do: numbers and texts in turn, then the rest. */
static void read_frame(frame_t *frame)
{
    char text[64];
    size_t rest;
    for (int i = 0; i < 8 && !frame->wrong; i++) {
        (void)wefti_frame_get(frame);
        wefti_frame_get_text(frame, text, sizeof text);
        fuzz_check(strlen(text) < sizeof text, "a text has no end");
    }
    const uint8_t *bytes = wefti_frame_get_rest(frame, &rest);
    fuzz_check(bytes + rest == frame->data + 8 + frame->bytes, "the rest is not the rest");
}

void fuzz_one(const uint8_t *data, size_t size)
{
    static frame_reader_t reader;
    static frame_t frame;
    size_t count;
    int ends[2], status = 0, filled = 1;
    const uint8_t *first = fuzz_take(&data, &size, 1, &count);
    fuzz_sockets(data, size, ends);
    reader.fd = ends[0];
    reader.used = 0;
    reader.greeted = count > 0 && (first[0] & 1) != 0;
    while (filled > 0 && status >= 0) {
        filled = wefti_frame_reader_fill(&reader);
        fuzz_check(reader.used <= sizeof reader.data, "the buffer overflows");
        while ((status = wefti_frame_reader_next(&reader, &frame)) > 0) {
            read_frame(&frame);
        }
        fuzz_check(status < 0 || reader.used < sizeof reader.data, "no frame fits the buffer");
    }
    close(ends[0]);
    close(ends[1]);
}
