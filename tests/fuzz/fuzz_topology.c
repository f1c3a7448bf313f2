/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions of clusters: what is accepted reads back from what is written of it. */
#include "runtime/base/json.h"
#include "runtime/machine/cluster.h"
#include "tests/support/support_fuzz.h"

void fuzz_one(const uint8_t *data, size_t size)
{
    wefti_cluster_t cluster, again;
    weft_status_t status =
        wefti_cluster_decode((const char *)data, size, NULL, NULL, NULL, &cluster);
    fuzz_check(status != WEFT_ERR_INTERNAL, "an error of our own");
    if (status < 0) {
        return;
    }
    wefti_text_t text;
    wefti_json_t json;
    wefti_text_init(&text, NULL);
    wefti_json_init(&json, &text, false);
    wefti_json_begin_object(&json, NULL);
    wefti_cluster_write(&cluster, &json);
    wefti_json_end_object(&json);
    status = wefti_cluster_decode(text.data, text.length, NULL, NULL, NULL, &again);
    fuzz_check(status == WEFT_OK, "what was written cannot be read");
    fuzz_check(again.host_count == cluster.host_count && again.rank_count == cluster.rank_count,
               "it reads back as another cluster");
    wefti_text_deinit(&text);
    wefti_cluster_deinit(&again);
    wefti_cluster_deinit(&cluster);
}
